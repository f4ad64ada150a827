// A node of the pool and a store on it, in one process: a chain of blocks is put, matched, read and looked at in place.
//
//   c++ -std=c++20 store_objects.cc $(pkg-config --cflags --libs kvferry) -o store_objects
#include <kvferry/store.h>

#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kBlockBytes = 64 * 1024, kBlocks = 16;

template <typename T>
T must(kvferry::Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::cerr << result.status().to_string() << '\n';
  std::exit(1);
}

}  // namespace

int main() {
  namespace kvs = kvferry::store;
  kvs::NodeOptions options;
  options.dram_bytes = 32u << 20;
  const auto node = must(kvs::Node::create(options));
  const auto store = must(kvs::Store::embedded(*node, {}));

  std::vector<std::vector<std::byte>> blocks;
  std::vector<std::string> names;
  for (std::size_t i = 0; i <= kBlocks; ++i) names.push_back("example/" + std::to_string(i));
  for (std::size_t i = 0; i < kBlocks; ++i) blocks.emplace_back(kBlockBytes, static_cast<std::byte>(i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  std::vector<std::span<const std::byte>> runs(blocks.begin(), blocks.end());
  std::vector<kvs::ConstPieces> values;
  for (const auto& run : runs) values.emplace_back(&run, 1);

  kvs::PutOptions chain;
  chain.chain = true;
  for (const kvs::PutResult& result : store->put(std::span(keys).first(kBlocks), values, chain)) {
    if (!result.status.ok()) return 1;
  }
  const std::uint64_t matched = must(store->match_prefix(keys, {}));
  const kvs::View view = must(store->view(keys[3], {}));
  const bool right = matched == kBlocks && view.bytes() == kBlockBytes && view.pieces()[0][7] == std::byte{3};
  std::cout << matched << " blocks matched, " << view.bytes() << " bytes in place, "
            << (right ? "all right" : "something is wrong") << '\n';
  return right ? 0 : 1;
}
