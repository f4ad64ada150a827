// A node's store under random operations, beside a small model of what it may hold. The seed is in the failure's text;
// KVFERRY_STORE_SEED repeats one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "mapped_files.h"
#include "store_fixture.h"

namespace kvferry::store {
namespace {

using testing::digest_for;
using testing::id_of;
using testing::soon;
using testing::StoreOnMemory;

constexpr std::uint64_t kNumbers = 60;
constexpr std::uint64_t kSessions = 5;

class Campaign {
 public:
  Campaign(std::uint64_t seed, NodeOptions options, std::size_t arenas)
      : random_(seed),
        has_ssd_(!options.ssd_directory.empty()),
        node_(std::move(options), arenas),
        client_(node_.new_client()) {}

  void run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      one_step();
      if (step % 4 == 0) check_a_pin();
      if (step % 16 == 0) {
        const Status status = node_->check();
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
    }
    finish();
  }

 private:
  struct Pin {
    std::uint64_t number = 0, version = 0;
    std::vector<Place> places;
  };
  struct Put {
    Session session = 0;
    std::uint64_t number = 0, version = 0;
    NewObject object;
    std::vector<Place> places;
  };

  std::uint64_t any(std::uint64_t below) { return random_() % below; }

  std::uint64_t any_size() {
    constexpr std::array<std::uint64_t, 9> kSizes{0, 1, 63, 64, 4095, 4096, 4097, 50000, 200000};
    return kSizes[any(kSizes.size())];
  }

  void one_step() {
    switch (any(10)) {
      case 0:
      case 1:
      case 2:
        return reserve();
      case 3:
      case 4:
        return finish_put(any(8) != 0);
      case 5:
        return pin_remote();
      case 6:
        return pin_in_place();
      case 7:
        return unpin();
      case 8:
        return remove();
      default:
        return any(10) == 0 ? end_session() : look();
    }
  }

  // Where objects leave for a disk, room is waited for that reserved memory may become. Here it is all our own.
  Deadline patience() const { return puts_.empty() ? soon() : deadline_in(milliseconds(20)); }
  bool no_room(const Status& status) const {
    if (status.code() == Code::kDeadlineExceeded) return has_ssd_ && !puts_.empty();
    return status.code() == Code::kResourceExhausted;
  }

  void reserve() {
    Put put;
    put.session = 1 + any(kSessions);
    put.number = any(kNumbers);
    put.version = any(2);
    put.object = StoreOnMemory::object(put.number, any_size());
    put.object.extra = any(8) == 0;
    if (any(16) == 0) put.object.expires_in = milliseconds(any(3));
    const auto reserved = node_->reserve(put.session, put.object, patience());
    if (!reserved.ok()) {
      ASSERT_TRUE(no_room(reserved.status())) << reserved.status().to_string();
      // Back-pressure is right only while something is in use.
      ASSERT_FALSE(puts_.empty() && pins_.empty() && in_place_.empty());
      return;
    }
    if (reserved->existing) {
      ASSERT_TRUE(current_.count(put.number)) << put.number;
      ASSERT_EQ(reserved->existing->digest, digest_for(id_of(put.number), current_[put.number]));
      return;
    }
    put.places = reserved->places;
    testing::fill(nullptr, node_.arenas(), put.object.id, put.version, put.places);
    puts_.emplace(reserved->put, put);
  }

  void finish_put(bool commit) {
    if (puts_.empty()) return;
    auto at = std::next(puts_.begin(), static_cast<std::ptrdiff_t>(any(puts_.size())));
    const auto [id, put] = *at;
    puts_.erase(at);
    ASSERT_TRUE(node_.intact(put.object.id, put.places, put.version)) << "somebody wrote to reserved memory";
    if (!commit) return node_->abort(put.session, id);
    const auto created = node_.commit(put.session, id, digest_for(put.object.id, put.version));
    if (created.ok() && *created) {
      current_[put.number] = put.version;
      sizes_[put.number] = put.object.bytes;
    } else if (created.ok()) {
      ASSERT_EQ(current_.at(put.number), put.version);
      ASSERT_EQ(sizes_.at(put.number), put.object.bytes);
    } else {
      ASSERT_EQ(created.status().code(), Code::kConflict);
      ASSERT_TRUE(current_.at(put.number) != put.version || sizes_.at(put.number) != put.object.bytes);
    }
  }

  void pin_remote() {
    const std::uint64_t number = any(kNumbers);
    const Session session = 1 + any(kSessions);
    const auto pinned = node_->pin(session, id_of(number), patience());
    if (!pinned.ok()) {
      // With an SSD tier there may be no room to bring it back to.
      ASSERT_TRUE((has_ssd_ && no_room(pinned.status())) || pinned.status().code() == Code::kNotFound)
          << pinned.status().to_string();
      return;
    }
    ASSERT_EQ(pinned->held.bytes, sizes_.at(number));
    pins_.emplace(std::pair(session, pinned->pin), Pin{number, current_.at(number), pinned->places});
  }

  void pin_in_place() {
    const std::uint64_t number = any(kNumbers);
    const auto pinned = client_->pin(id_of(number));
    ASSERT_TRUE(pinned.ok());
    if (!*pinned) return;
    in_place_.emplace_back(**pinned, Pin{number, current_.at(number), (*pinned)->places});
  }

  void unpin() {
    if (any(2) == 0 && !pins_.empty()) {
      auto at = std::next(pins_.begin(), static_cast<std::ptrdiff_t>(any(pins_.size())));
      check(at->second);
      ASSERT_TRUE(node_->unpin(at->first.first, at->first.second));
      ASSERT_FALSE(node_->unpin(at->first.first, at->first.second));
      pins_.erase(at);
    } else if (!in_place_.empty()) {
      const std::size_t at = any(in_place_.size());
      check(in_place_[at].second);
      client_->unpin(in_place_[at].first);
      in_place_.erase(in_place_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  void remove() {
    const std::uint64_t number = any(kNumbers);
    const bool was_there = node_->remove(id_of(number));
    if (was_there) {
      ASSERT_TRUE(current_.count(number));
    }
    ASSERT_FALSE(node_.has(number));
    ASSERT_FALSE(client_->find(id_of(number)));
    current_.erase(number);
  }

  void look() {
    const std::uint64_t number = any(kNumbers);
    const auto held = node_->find(id_of(number));
    if (!held) return;
    ASSERT_EQ(held->digest, digest_for(id_of(number), current_.at(number)));
    ASSERT_EQ(held->bytes, sizes_.at(number));
  }

  void end_session() {
    const Session session = 1 + any(kSessions);
    node_->end_session(session);
    std::erase_if(puts_, [&](const auto& entry) { return entry.second.session == session; });
    std::erase_if(pins_, [&](const auto& entry) { return entry.first.first == session; });
  }

  void check(const Pin& pin) {
    ASSERT_TRUE(node_.intact(id_of(pin.number), pin.places, pin.version)) << "object " << pin.number << " while pinned";
  }
  void check_a_pin() {
    if (!pins_.empty()) check(std::next(pins_.begin(), static_cast<std::ptrdiff_t>(any(pins_.size())))->second);
    if (!in_place_.empty()) check(in_place_[any(in_place_.size())].second);
  }

  void finish() {
    for (const auto& [pin, seen] : in_place_) client_->unpin(pin);
    for (Session session = 1; session <= kSessions; ++session) node_->end_session(session);
    for (std::uint64_t number = 0; number < kNumbers; ++number) (void)node_->remove(id_of(number));
    EXPECT_TRUE(testing::eventually([&] { return node_->stats().dram_used == 0; })) << node_->check().to_string();
    EXPECT_EQ(node_->stats().objects, 0u);
  }

  std::mt19937_64 random_;
  const bool has_ssd_;
  StoreOnMemory node_;
  std::unique_ptr<LocalReader> client_;
  // What was committed last under each number. It may have been evicted since.
  std::map<std::uint64_t, std::uint64_t> current_, sizes_;
  std::map<PutId, Put> puts_;
  std::map<std::pair<Session, PinId>, Pin> pins_;
  std::vector<std::pair<LocalPin, Pin>> in_place_;
};

struct Setting {
  PolicyKind policy = PolicyKind::kLru;
  bool ssd = false;
  WriteMode write = WriteMode::kWriteBack;
};

class LocalStoreModel : public ::testing::TestWithParam<Setting> {};

TEST_P(LocalStoreModel, AgreesWithTheModel) {
  const char* const given = std::getenv("KVFERRY_STORE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : random_u64();
  SCOPED_TRACE("KVFERRY_STORE_SEED=" + std::to_string(seed));
  std::mt19937_64 shapes(seed);
  for (int round = 0; round < 4 && !HasFailure(); ++round) {
    const kvferry::testing::TemporaryFolder folder;
    NodeOptions options;
    options.policy = GetParam().policy;
    options.dram_bytes = (4 + shapes() % 12) * 256 << 10;
    options.max_objects = shapes() % 2 == 0 ? 0 : 30;
    options.watermark_high = shapes() % 2 == 0 ? 1 : 0.9;
    if (GetParam().ssd) {
      options.ssd_directory = folder.file("ssd");
      options.ssd_bytes = 32u << 20;
      options.ssd_write = GetParam().write;
    }
    Campaign(shapes(), options, 1 + shapes() % 3).run(2500);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, LocalStoreModel,
                         ::testing::Values(Setting{PolicyKind::kLru}, Setting{PolicyKind::kLfu},
                                           Setting{PolicyKind::kS3Fifo}, Setting{PolicyKind::kPrefix},
                                           Setting{PolicyKind::kLru, true},
                                           Setting{PolicyKind::kPrefix, true, WriteMode::kWriteThrough}),
                         [](const auto& which) {
                           const Setting& setting = which.param;
                           const char* const tier = !setting.ssd                             ? ""
                                                    : setting.write == WriteMode::kWriteBack ? "WriteBack"
                                                                                             : "WriteThrough";
                           return "Policy" + std::to_string(static_cast<int>(setting.policy)) + tier;
                         });

}  // namespace
}  // namespace kvferry::store
