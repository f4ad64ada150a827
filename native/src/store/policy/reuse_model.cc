#include "store/policy/reuse_model.h"

#include <algorithm>
#include <cmath>

namespace kvferry::store {
namespace {

constexpr std::uint32_t kSampleBits = 13;
constexpr std::uint32_t kSampleSize = 1u << kSampleBits;
constexpr float kKept = 0.995F;        // of what was learned before, at each learn()
constexpr float kUsualWeight = 20.0F;  // a class that was seen less often is taken for the usual one

std::uint32_t mixed(std::uint32_t tag) { return tag * 0x9E3779B1u; }

}  // namespace

std::uint32_t ReuseModel::class_of(std::uint32_t uses) {
  static constexpr std::array<std::uint8_t, 16> kClassOf = {0, 0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7};
  return kClassOf[std::min(uses, 15u)];
}

std::uint32_t ReuseModel::age_of(Epoch epochs) {
  if (epochs < kExact) return epochs;
  const double doublings = std::log2(static_cast<double>(epochs) / kExact);
  return std::min(kExact + static_cast<std::uint32_t>(doublings * 8 + 1e-9), kAges - 1);
}

ReuseModel::Epoch ReuseModel::first_epoch_of(std::uint32_t age) {
  if (age < kExact) return age;
  return static_cast<Epoch>(std::ceil(kExact * std::exp2((age - kExact) / 8.0) - 1e-9));
}

ReuseModel::ReuseModel() : sample_(kSampleSize) { learn(0); }

void ReuseModel::use(std::uint32_t tag, std::uint32_t uses, Epoch now) {
  const std::uint32_t hash = mixed(tag);
  if ((hash & (one_in_ - 1)) != 0) return;
  std::uint32_t at = hash >> (32 - kSampleBits);
  while (sample_[at].uses_class != kNobody && sample_[at].tag != tag) at = (at + 1) % kSampleSize;
  Seen& seen = sample_[at];
  if (seen.uses_class != kNobody) {
    used_[seen.uses_class][age_of(now - seen.at)] += 1;
  } else {
    ++sampled_;
  }
  seen = {tag, now, static_cast<std::uint8_t>(class_of(uses))};
  if (sampled_ > kSampleSize / 4 * 3) halve_sample();
}

void ReuseModel::halve_sample() {
  one_in_ *= 2;
  std::vector<Seen> before(kSampleSize);
  before.swap(sample_);
  sampled_ = 0;
  for (const Seen& seen : before) {
    const std::uint32_t hash = mixed(seen.tag);
    if (seen.uses_class == kNobody || (hash & (one_in_ - 1)) != 0) continue;
    std::uint32_t at = hash >> (32 - kSampleBits);
    while (sample_[at].uses_class != kNobody) at = (at + 1) % kSampleSize;
    sample_[at] = seen;
    ++sampled_;
  }
}

void ReuseModel::learn(Epoch now) {
  Table left = gone_;  // and those that wait still
  std::vector<Seen> kept;
  for (const Seen& seen : sample_) {
    if (seen.uses_class == kNobody) continue;
    if (now - seen.at > first_epoch_of(kAges)) {
      gone_[seen.uses_class][kAges - 1] += 1;
    } else {
      kept.push_back(seen);
    }
    left[seen.uses_class][age_of(now - seen.at)] += 1;
  }
  if (kept.size() < sampled_) {
    std::fill(sample_.begin(), sample_.end(), Seen{});
    sampled_ = 0;
    for (const Seen& seen : kept) {
      std::uint32_t at = mixed(seen.tag) >> (32 - kSampleBits);
      while (sample_[at].uses_class != kNobody) at = (at + 1) % kSampleSize;
      sample_[at] = seen;
      ++sampled_;
    }
  }
  std::array<float, kAges> usual{};
  float reached = 0;
  for (std::uint32_t age = kAges; age-- > 0;) {
    float used = 0;
    for (std::uint32_t c = 0; c < kClasses; ++c) {
      used += used_[c][age];
      reached += used_[c][age] + left[c][age];
    }
    usual[age] = reached > 0 ? used / reached : 0;
  }
  for (std::uint32_t c = 0; c < kClasses; ++c) work_out(c, usual, left);
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    for (float& count : used_[c]) count *= kKept;
    for (float& count : gone_[c]) count *= kKept;
  }
}

void ReuseModel::work_out(std::uint32_t uses_class, const std::array<float, kAges>& usual, const Table& left) {
  std::array<float, kAges> chance{};  // to be used at an age, if not before
  std::array<float, kAges> epochs{};
  float reached = 0;
  for (std::uint32_t age = kAges; age-- > 0;) {
    const float used = used_[uses_class][age];
    reached += used + left[uses_class][age];
    chance[age] = (used + kUsualWeight * usual[age]) / (reached + kUsualWeight);
    epochs[age] = static_cast<float>(first_epoch_of(age + 1) - first_epoch_of(age));
  }
  for (std::uint32_t age = 0; age < kAges; ++age) {
    float best = 0;
    float waiting = 1;
    float used = 0;
    float room = 0;
    for (std::uint32_t until = age; until < kAges && waiting > 1e-6F; ++until) {
      used += waiting * chance[until];
      room += waiting * epochs[until] * (1 - chance[until] / 2);
      waiting *= 1 - chance[until];
      best = std::max(best, used / room);
    }
    worth_[uses_class][age] = best;
  }
}

}  // namespace kvferry::store
