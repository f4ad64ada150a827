// How soon objects are used again, learned from a sample of all uses, and what follows for their worth.
//
// Time is counted in epochs, parts of what it takes to fill the cache once. The sample is of ids, whether they are held
// or not, so what it says does not depend on what is kept. For each number of earlier uses it knows at which ages
// objects were used again and how many of that age were not. The worth of an object of some age is its Gittins index:
// over the time to keep it that is best for it, the chance that it is used by then for each epoch that it takes room.
// Memory is fixed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace kvferry::store {

class ReuseModel {
 public:
  static constexpr std::uint32_t kClasses = 8;  // by number of uses
  static constexpr std::uint32_t kAges = 64;    // the first kExact are one epoch each, then eight to a doubling
  static constexpr std::uint32_t kExact = 32;
  using Epoch = std::uint32_t;
  using Table = std::array<std::array<float, kAges>, kClasses>;

  static std::uint32_t class_of(std::uint32_t uses);
  static std::uint32_t age_of(Epoch epochs);
  static Epoch first_epoch_of(std::uint32_t age);  // first_epoch_of(kAges) is where the last one ends

  ReuseModel();
  // An object that now has so many uses was put or used.
  void use(std::uint32_t tag, std::uint32_t uses, Epoch now);
  // Counts what was seen since the last time, a little less what was seen before, and works out all worths.
  void learn(Epoch now);
  const Table& worth() const { return worth_; }
  std::uint64_t memory_bytes() const { return sample_.capacity() * sizeof(Seen) + sizeof(*this); }

 private:
  struct Seen {
    std::uint32_t tag = 0;
    Epoch at = 0;
    std::uint8_t uses_class = kNobody;
  };
  static constexpr std::uint8_t kNobody = UINT8_MAX;

  void halve_sample();
  void work_out(std::uint32_t uses_class, const std::array<float, kAges>& usual, const Table& left);

  std::vector<Seen> sample_;  // open addressing by tag
  std::uint32_t sampled_ = 0;
  std::uint32_t one_in_ = 1;  // tags that are multiples of it are sampled; a power of two
  Table used_{};              // how many were used again at an age
  Table gone_{};              // how many were not, by the age at which they were dropped
  Table worth_{};
};

}  // namespace kvferry::store
