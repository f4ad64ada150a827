// The different sets of instances that hold blocks, each kept once: thousands of blocks have the same holders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

namespace kvferry::index {

// Sets are named by small numbers; 0 is the empty one. A set lives as long as blocks use it. Thread-compatible.
class HolderSets {
 public:
  using Id = std::uint32_t;
  static constexpr Id kEmpty = 0;

  explicit HolderSets(std::size_t words);  // of 64 instances each
  HolderSets(const HolderSets&) = delete;
  HolderSets& operator=(const HolderSets&) = delete;

  bool contains(Id set, std::uint32_t instance) const {
    return (masks_[set * words_ + instance / 64] >> (instance % 64) & 1) != 0;
  }
  std::span<const std::uint64_t> mask(Id set) const { return {masks_.data() + set * words_, words_}; }
  // One block's set with `instance` added, or taken out. The block uses the result instead of `set`.
  Id toggled(Id set, std::uint32_t instance);
  std::size_t memory_bytes() const;

 private:
  struct Hash {
    const HolderSets* sets;
    std::size_t operator()(Id set) const;
  };
  struct Equal {
    const HolderSets* sets;
    bool operator()(Id a, Id b) const;
  };
  Id toggle_slowly(Id set, std::uint32_t instance);
  Id fresh();  // a set without users whose mask is to be filled
  void leave(Id set);

  std::size_t words_;
  std::vector<std::uint64_t> masks_;
  std::vector<std::uint32_t> users_;  // blocks
  std::vector<Id> free_;
  std::unordered_set<Id, Hash, Equal> known_;
  struct {
    Id from;
    std::uint32_t instance;
    Id to;    // kEmpty: none
  } last_{};  // the blocks of a chain mostly go the same way
};

}  // namespace kvferry::index
