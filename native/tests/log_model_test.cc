// The store's log against a model: random appends, erases, reads, restarts and crashes, with a seed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "log_fixture.h"

namespace kvferry::testing {
namespace {

// What must be there, and what may be.
class Model : public LogTest {
 protected:
  using Random = std::mt19937_64;

  LogOptions model_options() {
    LogOptions options = this->options();
    options.segment_bytes = 256 << 10;
    options.capacity = 12 * options.segment_bytes;
    options.moved = [this](const ObjectId& id, const LogPlace& from, const LogPlace& to) {
      const std::lock_guard lock(mutex_);
      if (id.lo >= appending_from_) {
        early_[id.lo] = to;
        return true;
      }
      const auto known = table_.find(id.lo);
      if (known == table_.end() || !(known->second.place == from)) return false;
      known->second.place = to;
      return true;
    };
    return options;
  }
  static std::uint64_t size_from(Random& random) {
    switch (random() % 8) {
      case 0:
        return random() % 4;
      case 1:
        return 4096 * (random() % 8);
      case 2:
        return random() % 300000;
      default:
        return random() % 20000;
    }
  }
  std::optional<Found> pick(Random& random) {
    const std::lock_guard lock(mutex_);
    if (table_.empty()) return std::nullopt;
    auto at = table_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random() % table_.size()));
    return at->second;
  }
  std::optional<LogPlace> place_of(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto known = table_.find(number);
    return known == table_.end() ? std::nullopt : std::optional(known->second.place);
  }

  void erase_some(Random& random, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto victim = pick(random);
      if (!victim) return;
      for (auto place = place_of(victim->object.number); place; place = place_of(victim->object.number)) {
        const Status status = log_->erase(victim->object.id(), *place, soon());
        if (status.code() == Code::kStale) continue;  // it has just moved
        ASSERT_OK(status);
        break;
      }
      const std::lock_guard lock(mutex_);
      table_.erase(victim->object.number);
    }
  }
  void append_some(Random& random, std::size_t count) {
    std::vector<Object> objects;
    for (std::size_t i = 0; i < count; ++i) objects.push_back({next_++, size_from(random)});
    {
      const std::lock_guard lock(mutex_);
      appending_from_ = objects.front().number;
    }
    const auto places = append_all(*log_, objects);
    bool full = false;
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!places[i].ok()) {
        full = true;
        ASSERT_EQ(places[i].status().code(), Code::kResourceExhausted) << places[i].status().to_string();
        continue;
      }
      const std::lock_guard lock(mutex_);
      const auto moved = early_.find(objects[i].number);
      table_[objects[i].number] = {objects[i], moved == early_.end() ? *places[i] : moved->second};
    }
    {
      const std::lock_guard lock(mutex_);
      appending_from_ = UINT64_MAX;
      early_.clear();
    }
    if (full) erase_some(random, table_.size() / 3 + 1);
  }
  void read_one(Random& random) {
    const auto wanted = pick(random);
    if (!wanted) return;
    for (auto place = place_of(wanted->object.number); place; place = place_of(wanted->object.number)) {
      const Status status = check(*log_, wanted->object, *place);
      if (status.code() == Code::kStale) continue;
      ASSERT_OK(status);
      return;
    }
  }
  void open_model() {
    const std::map<std::uint64_t, Found> before = std::exchange(table_, {});
    auto log = Log::open(model_options(), [this](const LogRecord& record, const LogPlace& place) {
      const std::lock_guard lock(mutex_);
      table_[record.id.lo] = {{record.id.lo, record.bytes}, place};
    });
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    log_ = *std::move(log);
    EXPECT_EQ(table_.size(), before.size());
    for (const auto& [number, there] : before) {
      const auto place = place_of(number);
      ASSERT_TRUE(place) << "object " << number << " is lost";
      const Status status = check(*log_, there.object, *place);
      if (status.code() != Code::kStale) ASSERT_OK(status);  // else it moves just now
    }
    EXPECT_LE(log_->usage().disk_bytes, model_options().capacity);
  }

  std::mutex mutex_;
  std::map<std::uint64_t, Found> table_;  // guarded by mutex_ while the log is open
  std::map<std::uint64_t, LogPlace> early_;
  std::uint64_t appending_from_ = UINT64_MAX, next_ = 1;
};

TEST_F(Model, RandomWorkWithRestarts) {
  const char* const given = std::getenv("KVFERRY_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261129;
  Random random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  open_model();
  for (int step = 0; step < 250 && !HasFatalFailure(); ++step) {
    const auto what = random() % 100;
    if (what < 45) {
      append_some(random, 1 + random() % 12);
    } else if (what < 70) {
      erase_some(random, 1 + random() % 6);
    } else if (what < 97) {
      read_one(random);
    } else {
      log_.reset();
      open_model();
    }
    ASSERT_LE(log_->usage().disk_bytes, model_options().capacity);
  }
  log_.reset();
  open_model();
}

// The child tells by a pipe what it has been promised: 'a' appended, 'e' about to be erased, 'E' erased.
struct Word {
  std::uint64_t number = 0, size = 0;
  char what = 0;
};

[[noreturn]] void work_until_killed(const LogOptions& options, int pipe, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::mutex mutex;
  std::map<std::uint64_t, Found> table;
  LogOptions own = options;
  own.moved = [&](const ObjectId& id, const LogPlace& from, const LogPlace& to) {
    const std::lock_guard lock(mutex);
    const auto known = table.find(id.lo);
    if (known == table.end() || !(known->second.place == from)) return false;
    known->second.place = to;
    return true;
  };
  const auto tell = [&](char what, const Object& object) {
    const Word word{object.number, object.size, what};
    if (::write(pipe, &word, sizeof(word)) != sizeof(word)) ::_exit(3);
  };
  auto log = Log::open(own, [&](const LogRecord& record, const LogPlace& place) {
    table[record.id.lo] = {{record.id.lo, record.bytes}, place};
  });
  if (!log.ok()) ::_exit(4);
  for (std::uint64_t number = seed << 32;; ++number) {
    const Object object{number, random() % (number % 7 == 0 ? 200000 : 9000)};
    const auto place = append(**log, object);
    if (place.ok()) {
      const std::lock_guard lock(mutex);
      table[number] = {object, *place};
      tell('a', object);
    }
    for (std::size_t erases = place.ok() ? random() % 2 : 10; erases > 0 && table.size() > 1; --erases) {
      std::unique_lock lock(mutex);
      auto victim = table.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(random() % table.size()));
      const Found found = victim->second;
      tell('e', found.object);
      lock.unlock();
      if (!(*log)->erase(found.object.id(), found.place, soon()).ok()) continue;  // it moved: another time
      lock.lock();
      table.erase(found.object.number);
      tell('E', found.object);
    }
  }
}

TEST_F(Model, AKilledWriterLosesNothingThatWasPromised) {
  std::map<std::uint64_t, Object> there, perhaps;
  std::uint64_t appended = 0;
  for (std::uint64_t round = 1; round <= 6; ++round) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(ends[0]);
      work_until_killed(model_options(), ends[1], round);
    }
    ::close(ends[1]);
    std::this_thread::sleep_for(milliseconds(100 + 50 * static_cast<int>(round)));
    ::kill(child, SIGKILL);
    Word word;
    perhaps.clear();
    while (::read(ends[0], &word, sizeof(word)) == sizeof(word)) {
      const Object object{word.number, word.size};
      if (word.what == 'a') there[word.number] = object;
      if (word.what == 'a') ++appended;
      if (word.what == 'e') perhaps[word.number] = object;
      if (word.what == 'E') there.erase(word.number);
    }
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    RecoveredObjects found;
    LogOptions still = model_options();
    still.compact_below = 0;
    const auto log = Log::open(still, found.callback());
    ASSERT_TRUE(log.ok()) << log.status().to_string();
    for (const auto& [number, object] : there) {
      const bool may_be_gone = perhaps.count(number) != 0;
      EXPECT_TRUE(found.found.count(number) == 1 || may_be_gone) << "object " << number << " is lost";
    }
    for (const auto& [number, now] : found.found) {
      // One that was being appended may be there, too; none that was erased.
      const bool was_being_appended = number > (round << 32) && there.upper_bound(number) == there.end();
      EXPECT_TRUE(there.count(number) == 1 || was_being_appended) << "object " << number << " came back";
      ASSERT_OK(check(**log, now.object, now.place));
    }
    EXPECT_TRUE(usage_is_exact(**log, folder_.file("log")));
    there.clear();
    for (const auto& [number, now] : found.found) there[number] = now.object;
  }
  EXPECT_GT(appended, 100u);
}

// Field case 4.11: killed in mid-write, one file cut, a limit that is too small for what is there.
TEST_F(Model, ARestartFindsWhatIsThereAndKeepsToItsLimit) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[0]);
    work_until_killed(model_options(), ends[1], 1);
  }
  ::close(ends[1]);
  Word word;
  for (int words = 0; words < 400; ++words) {
    ASSERT_EQ(::read(ends[0], &word, sizeof(word)), static_cast<ssize_t>(sizeof(word)));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  const auto files = segment_files(folder_.file("log"));
  ASSERT_GE(files.size(), 4u);
  std::filesystem::resize_file(files[1], std::filesystem::file_size(files[1]) / 2);
  LogOptions small = model_options();
  small.capacity = 4 * small.segment_bytes;
  small.compact_below = 0;
  RecoveredObjects found;
  const auto log = Log::open(small, found.callback());
  ASSERT_TRUE(log.ok()) << log.status().to_string();
  EXPECT_GT(found.found.size(), 50u);
  for (const auto& [number, now] : found.found) {
    const Status status = check(**log, now.object, now.place);
    EXPECT_TRUE(status.ok() || status.code() == Code::kDataCorrupt) << status.to_string();  // in what was cut off
  }
  EXPECT_TRUE(usage_is_exact(**log, folder_.file("log")));
  const std::uint64_t before = (*log)->usage().disk_bytes;
  EXPECT_EQ(append(**log, {1, 1000}).status().code(), Code::kResourceExhausted);
  EXPECT_LE((*log)->usage().disk_bytes, before);
  while (!append(**log, {1, 1000}).ok()) {
    const auto victims = (*log)->cheapest_to_erase();
    ASSERT_FALSE(victims.empty());
    for (const Status& status : (*log)->erase_batch(victims, soon())) ASSERT_OK(status);
  }
  EXPECT_LE((*log)->usage().disk_bytes - (*log)->usage().spare_bytes, small.capacity);
}

}  // namespace
}  // namespace kvferry::testing
