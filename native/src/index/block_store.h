// The blocks of an index, each with its key and a 32-bit value, one behind the other in the order in which they came:
// the blocks of a chain mostly lie side by side, and to read a chain is to read memory from front to back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kvferry/block_key.h"

namespace kvferry::index {

struct KeyWords {
  std::uint64_t low, high;
  bool operator==(const KeyWords&) const = default;
};

inline KeyWords words_of(const BlockKey& key) {
  KeyWords words;
  std::memcpy(&words.low, key.bytes.data(), sizeof(words.low));
  std::memcpy(&words.high, key.bytes.data() + sizeof(words.low), sizeof(words.high));
  if ((words.low | words.high) == 0) words.high = 1;  // zero marks a free place; a hash is zero once in 2^128 times
  return words;
}

// 20 bytes a block, in chunks of 256. A chunk of which a quarter is free takes blocks again, an empty one is given
// back, and tighten() keeps two thirds in use. Thread-compatible: const members may run side by side. For fewer than
// 2^32 - 256 blocks.
class BlockStore {
 public:
  using Position = std::uint32_t;
  static constexpr Position kNone = UINT32_MAX;

  Position add(const KeyWords& key, std::uint32_t value);
  void remove(Position position);
  // The value, if this block is at `position`, which may be any number. Good until the store changes.
  const std::uint32_t* at(Position position, const KeyWords& key) const {
    const std::size_t number = position / kChunk;
    if (number >= chunks_.size() || chunks_[number] == nullptr) return nullptr;
    const Block& block = chunks_[number]->blocks[position % kChunk];
    return block.key() == key ? &block.value : nullptr;
  }
  std::uint32_t& value(Position position) { return block(position).value; }  // of one that is there
  void prefetch(Position position) const {
    const Block& block = chunks_[position / kChunk]->blocks[position % kChunk];
    __builtin_prefetch(&block);
    __builtin_prefetch(&block.value);  // one in four lies in two lines
  }

  std::size_t chunks() const { return chunks_.size(); }  // the last one has blocks, others may have none
  // Calls visit(position, key) for each block of a chunk; may remove it.
  template <typename Visit>
  void each(std::size_t chunk, Visit&& visit) const {
    for (std::uint32_t i = 0; i < kChunk && chunk < chunks_.size() && chunks_[chunk] != nullptr; ++i) {
      const KeyWords key = chunks_[chunk]->blocks[i].key();
      if (key != KeyWords{}) visit(static_cast<Position>(chunk * kChunk + i), key);
    }
  }
  // Moves blocks from the last chunk to others while too little of the memory is in use: moved(key, from, to). So a
  // block that was in one chunk is later in that one or in one before it.
  template <typename Moved>
  void tighten(Moved&& moved) {
    while (size_ * 3 < allocated_ * kChunk * 2 && allocated_ > kFewChunks) {
      leaving_ = static_cast<std::uint32_t>(chunks_.size() - 1);
      chunks_[leaving_]->open = false;
      bool room = true;
      each(leaving_, [&](Position from, const KeyWords& key) {
        const Position to = room ? add_to_open(key, value(from)) : kNone;
        room = to != kNone;
        if (!room) return;
        moved(key, from, to);
        remove(from);
      });
      const std::uint32_t last = std::exchange(leaving_, kNone);
      if (!room) return reopen(last);
    }
  }

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const {
    return allocated_ * sizeof(Chunk) + chunks_.capacity() * sizeof(chunks_[0]) +
           (open_.capacity() + vacant_.capacity()) * sizeof(open_[0]);
  }

 private:
  static constexpr std::uint32_t kChunk = 256;
  static constexpr std::uint32_t kReopen = kChunk / 4;  // free places
  static constexpr std::size_t kFewChunks = 4;
  struct Block {
    std::array<std::uint32_t, 4> words{};  // zero: free. Not of 64 bits each, which would take padding
    std::uint32_t value = 0;
    KeyWords key() const {
      KeyWords key;
      std::memcpy(&key, words.data(), sizeof(key));
      return key;
    }
  };
  static_assert(sizeof(Block) == 20);
  struct Chunk {
    std::array<Block, kChunk> blocks;
    std::uint32_t used = 0;
    std::uint32_t next = 0;  // no free place before it is looked for
    bool open = false;       // takes blocks
  };

  Block& block(Position position) { return chunks_[position / kChunk]->blocks[position % kChunk]; }
  Position add_to_open(const KeyWords& key, std::uint32_t value);  // kNone: no chunk takes any
  void add_chunk();
  void reopen(std::uint32_t chunk);  // unless it is open, or hardly any of it free
  void give_back(std::uint32_t chunk);

  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::uint32_t> open_;    // the one that is being filled last; some are not open any more
  std::vector<std::uint32_t> vacant_;  // numbers to use again, unless they are used or beyond the last one by now
  std::uint32_t leaving_ = kNone;      // the chunk whose blocks move to others
  std::size_t size_ = 0;
  std::size_t allocated_ = 0;
};

}  // namespace kvferry::index
