// Two engines in one process: one offers blocks, the other reads some of them.
//
//   c++ -std=c++20 move_blocks.cc $(pkg-config --cflags --libs kvferry) -o move_blocks
#include <kvferry/engine.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kBlockBytes = 64 * 1024;
constexpr std::size_t kBlocks = 256, kWanted = 16;

template <typename T>
T must(kvferry::Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::cerr << result.status().to_string() << '\n';
  std::exit(1);
}

}  // namespace

int main() {
  const auto owner = must(kvferry::Engine::create({}));
  const auto [offered, data] = must(owner->allocate(kBlockBytes * kBlocks, "blocks", kvferry::kRemoteRead));
  auto* const bytes = static_cast<unsigned char*>(data);
  for (std::size_t i = 0; i < kBlocks * kBlockBytes; ++i) bytes[i] = static_cast<unsigned char>(i / kBlockBytes);

  const auto reader = must(kvferry::Engine::create({}));
  std::vector<unsigned char> buffer(kWanted * kBlockBytes);
  const auto ours = must(reader->register_memory(buffer.data(), buffer.size(), "buffer", 0, kvferry::MemoryKind::kHost));
  const auto peer = must(reader->connect(owner->endpoint(), owner->node_id(), 5s));

  std::vector<kvferry::Piece> pieces;
  for (std::uint64_t i = 0; i < kWanted; ++i) {
    pieces.push_back({ours.key.id, offered.key.id, i * kBlockBytes, 16 * i * kBlockBytes, kBlockBytes});
  }
  const auto plan = must(reader->prepare(peer, pieces, kvferry::Op::kRead));
  const auto transfer = must(reader->execute(plan, {}));
  if (const kvferry::Status status = transfer->status(); !status.ok()) {
    std::cerr << status.to_string() << '\n';
    return 1;
  }
  for (std::size_t i = 0; i < kWanted; ++i) {
    if (buffer[i * kBlockBytes] != 16 * i) return 1;
  }
  std::cout << kWanted << " blocks, " << plan->bytes() << " bytes by " << transfer->transport() << ", all right\n";
  return 0;
}
