#include "index/block_store.h"

namespace kvferry::index {

BlockStore::Position BlockStore::add(const KeyWords& key, std::uint32_t value) {
  Position position = add_to_open(key, value);
  if (position != kNone) return position;
  add_chunk();
  return add_to_open(key, value);
}

BlockStore::Position BlockStore::add_to_open(const KeyWords& key, std::uint32_t value) {
  for (; !open_.empty(); open_.pop_back()) {
    const std::uint32_t number = open_.back();
    if (number >= chunks_.size() || chunks_[number] == nullptr || !chunks_[number]->open) continue;
    Chunk& chunk = *chunks_[number];
    while (chunk.used < kChunk && chunk.next < kChunk) {
      Block& block = chunk.blocks[chunk.next++];
      if (block.key() != KeyWords{}) continue;
      std::memcpy(block.words.data(), &key, sizeof(key));
      block.value = value;
      ++chunk.used;
      ++size_;
      return number * kChunk + chunk.next - 1;
    }
    chunk.open = false;
    reopen(number);  // if so many went meanwhile
  }
  return kNone;
}

void BlockStore::remove(Position position) {
  const std::uint32_t number = position / kChunk;
  block(position) = {};
  --size_;
  if (--chunks_[number]->used == 0) {
    give_back(number);
  } else {
    reopen(number);
  }
}

void BlockStore::add_chunk() {
  std::size_t number = chunks_.size();
  while (!vacant_.empty() && number == chunks_.size()) {
    if (vacant_.back() < chunks_.size() && chunks_[vacant_.back()] == nullptr) number = vacant_.back();
    vacant_.pop_back();
  }
  if (number == chunks_.size()) chunks_.emplace_back();
  chunks_[number] = std::make_unique<Chunk>();
  chunks_[number]->open = true;
  open_.push_back(static_cast<std::uint32_t>(number));
  ++allocated_;
}

void BlockStore::reopen(std::uint32_t chunk) {
  Chunk& again = *chunks_[chunk];
  if (again.open || chunk == leaving_ || kChunk - again.used < kReopen) return;
  again.open = true;
  again.next = 0;
  open_.insert(open_.empty() ? open_.end() : open_.end() - 1, chunk);  // the one that is being filled stays so
}

void BlockStore::give_back(std::uint32_t chunk) {
  chunks_[chunk].reset();
  --allocated_;
  vacant_.push_back(chunk);
  while (!chunks_.empty() && chunks_.back() == nullptr) chunks_.pop_back();
  if (chunks_.size() * 4 < chunks_.capacity()) chunks_.shrink_to_fit();
  if (!chunks_.empty()) return;
  open_ = std::vector<std::uint32_t>();
  vacant_ = std::vector<std::uint32_t>();
}

}  // namespace kvferry::index
