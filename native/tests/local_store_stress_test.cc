// Readers in threads and in a forked process, which is killed again and again, beside writers under eviction pressure:
// what is read under a pin is right, and all memory comes back.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "store/client_page.h"
#include "store_fixture.h"

namespace kvferry::store {
namespace {

using testing::digest_for;
using testing::id_of;
using testing::soon;
using testing::StoreOnMemory;

constexpr std::uint64_t kNumbers = 400;

std::uint64_t size_of(std::uint64_t number) { return 1 + number * 7919 % 24000; }

struct Tally {
  std::atomic<std::uint64_t> hits{0};
  std::atomic<std::uint64_t> wrong{0};
};

// Each version of an object has bytes of its own, and a digest that tells the version.
bool right_bytes(const LocalReader& reader, const ObjectId& id, const Held& held, const std::vector<Place>& places) {
  std::uint64_t at = 0;
  for (const Place& place : places) {
    const auto source = reader.memory(place);
    if (source.size() != place.length) return false;
    for (std::uint64_t i = 0; i + 8 <= place.length; i += 8, at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, source.data() + i, 8);
      if (word != testing::word_of(id, held.digest.hi ^ id.hi, at)) return false;
    }
  }
  return true;
}

void read_in_place(LocalReader& reader, std::uint64_t seed, const std::function<bool()>& stop, Tally& tally) {
  std::mt19937_64 random(seed);
  while (!stop()) {
    const ObjectId id = id_of(random() % kNumbers);
    auto pinned = reader.pin(id);
    if (!pinned.ok() || !*pinned) continue;
    // Held a little, so that its object is taken away meanwhile.
    const bool before = right_bytes(reader, id, (*pinned)->held, (*pinned)->places);
    if (random() % 8 == 0) std::this_thread::yield();
    const bool after = right_bytes(reader, id, (*pinned)->held, (*pinned)->places);
    if (!before || !after) ++tally.wrong;
    reader.unpin(**pinned);
    ++tally.hits;
  }
}

void read_by_pins(StoreOnMemory& node, std::uint64_t seed, const std::atomic<bool>& stop, Tally& tally) {
  std::mt19937_64 random(seed);
  while (!stop) {
    const ObjectId id = id_of(random() % kNumbers);
    const auto pinned = node->pin(seed, id, soon());
    if (!pinned.ok()) continue;
    if (!node.intact(id, pinned->places, pinned->held.digest.hi ^ id.hi)) ++tally.wrong;
    if (!node->unpin(seed, pinned->pin)) ++tally.wrong;
    ++tally.hits;
  }
}

void write(StoreOnMemory& node, std::uint64_t seed, const std::atomic<bool>& stop, std::atomic<std::uint64_t>& puts) {
  std::mt19937_64 random(seed);
  for (std::uint64_t version = seed << 32; !stop; ++version) {
    const std::uint64_t number = random() % kNumbers;
    if (random() % 4 == 0) (void)node->remove(id_of(number));
    const Status status = node.put(StoreOnMemory::object(number, size_of(number)), version, seed);
    if (status.ok()) ++puts;
    const bool expected = status.ok() || status.code() == Code::kConflict || status.code() == Code::kResourceExhausted;
    EXPECT_TRUE(expected) << status.to_string();
  }
}

NodeOptions small_node() {
  NodeOptions options;
  options.dram_bytes = 2u << 20;  // a third of what is written
  options.policy = PolicyKind::kLru;
  return options;
}

TEST(LocalStoreStress, ThreadsReadRightBytes) {
  StoreOnMemory node(small_node(), 2);
  const auto client = node.new_client();
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> puts{0};
  Tally in_place, by_pins;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 1; i <= 2; ++i) {
    threads.emplace_back([&, i] { write(node, i, stop, puts); });
    threads.emplace_back([&, i] {
      read_in_place(
          *client, i, [&] { return stop.load(); }, in_place);
    });
  }
  threads.emplace_back([&] { read_by_pins(node, 99, stop, by_pins); });
  const auto enough = [&] { return puts > 3000 && in_place.hits > 3000 && by_pins.hits > 1000; };
  EXPECT_TRUE(testing::eventually(enough)) << puts << " " << in_place.hits << " " << by_pins.hits;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(in_place.wrong + by_pins.wrong, 0u);
  EXPECT_GT(node.counter("evicted_total"), 0u);
}

// One object, one place for it: whoever pins it between its removal and its next life must notice.
TEST(LocalStoreStress, NoPinComesTooLate) {
  NodeOptions options = small_node();
  options.dram_bytes = 64;
  StoreOnMemory node(options);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> lives{0}, hits{0}, wrong{0};
  std::thread writer([&] {
    for (std::uint64_t version = 0; !stop; ++version) {
      if (node.put(StoreOnMemory::object(0, 64), version).ok()) ++lives;
      (void)node->remove(id_of(0));
    }
  });
  const auto client = node.new_client();
  const Deadline deadline = soon();
  while ((hits < 30000 || lives < 100000) && !expired(deadline)) {
    const auto pinned = client->pin(id_of(0));
    if (!pinned.ok() || !*pinned) continue;
    ++hits;
    for (int look = 0; look < 10; ++look) {
      if (!right_bytes(*client, id_of(0), (*pinned)->held, (*pinned)->places)) ++wrong;
    }
    client->unpin(**pinned);
  }
  stop = true;
  writer.join();
  EXPECT_GT(hits, 100u);
  EXPECT_EQ(wrong, 0u) << "of " << hits << " pins in " << lives << " lives";
}

// A child process that reads until it is killed. What it saw lies in memory that both have.
class Reader {
 public:
  struct Report {
    Tally tally;
    std::atomic<std::uint64_t> entered{0};
  };

  explicit Reader(const StoreOnMemory& node, bool in_the_middle) {
    const auto page = node->add_client([this] { return gone_.load(); });
    if (!page.ok()) return;
    page_ = *page;
    pid_ = ::fork();
    if (pid_ != 0) return;
    const auto reader = node.reader(page_);
    if (in_the_middle) pin_by_halves(node);
    const std::vector<Kept> kept = keep_pins(*reader);
    const auto never = [&] {
      for (const Kept& pin : kept) {
        if (!right_bytes(*reader, pin.id, pin.pin.held, pin.pin.places)) ++report().tally.wrong;
      }
      return false;
    };
    read_in_place(*reader, static_cast<std::uint64_t>(::getpid()), never, report().tally);
    ::_exit(0);
  }
  ~Reader() { kill(); }
  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
    if (number == SIGSTOP && pid_ > 0) ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    gone_ = true;
  }
  bool running() const { return pid_ > 0; }
  Report& report() const { return *reinterpret_cast<Report*>(block_.span().data()); }

 private:
  // Enters what it never looks at again, as one that dies between the two steps of pin().
  void pin_by_halves(const StoreOnMemory& node) {
    const auto pages = reinterpret_cast<PinPage*>(node.shared().pins.data());
    ClientPage page(pages[page_]);
    std::mt19937_64 random(1);
    for (;;) {
      const auto entry = page.enter(pin_word(static_cast<std::uint32_t>(random() % 256), 1));
      ++report().entered;
      if (entry && random() % 4 != 0) page.leave(*entry);
      if (!entry) ::pause();
    }
  }
  struct Kept {
    ObjectId id;
    LocalPin pin;
  };
  static std::vector<Kept> keep_pins(LocalReader& reader) {
    std::vector<Kept> kept;
    for (std::uint64_t number = 0; number < 8; ++number) {
      const auto pinned = reader.pin(id_of(number));
      if (pinned.ok() && *pinned) kept.push_back({id_of(number), **pinned});
    }
    return kept;
  }

  testing::SharedBlock block_{4096};
  std::atomic<bool> gone_{false};
  std::uint32_t page_ = 0;
  pid_t pid_ = -1;
};

TEST(LocalStoreStress, KilledReadersLeaveNothingPinned) {
  StoreOnMemory node(small_node());
  std::vector<std::unique_ptr<Reader>> readers;
  // All forks come before the writers' threads, so that the sanitizers know of none in the children.
  for (int i = 0; i < 6; ++i) readers.push_back(std::make_unique<Reader>(node, i % 3 == 2));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> puts{0};
  std::vector<std::thread> writers;
  for (std::uint64_t i = 1; i <= 2; ++i) writers.emplace_back([&, i] { write(node, i, stop, puts); });
  for (const auto& reader : readers) {
    ASSERT_TRUE(reader->running());
    EXPECT_TRUE(testing::eventually([&] { return reader->report().tally.hits > 50 || reader->report().entered > 50; }));
    reader->kill();
    EXPECT_EQ(reader->report().tally.wrong, 0u);
  }
  EXPECT_TRUE(testing::eventually([&] { return node->stats().clients == 0; }));
  stop = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(node->stats().pinned_objects, 0u);
  for (std::uint64_t number = 0; number < kNumbers; ++number) (void)node->remove(id_of(number));
  EXPECT_TRUE(testing::eventually([&] { return node->stats().dram_used == 0; }));
}

// A reader that stopped is not a dead one, however long it takes.
TEST(LocalStoreStress, StoppedReadersKeepTheirPins) {
  StoreOnMemory node(small_node());
  for (std::uint64_t number = 0; number < 8; ++number) {
    ASSERT_TRUE(node.put(StoreOnMemory::object(number, size_of(number)), 7).ok());
  }
  Reader reader(node, false);
  ASSERT_TRUE(testing::eventually([&] { return node->stats().pinned_objects >= 8; }));
  reader.signal(SIGSTOP);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> puts{0};
  std::thread writer([&] { write(node, 1, stop, puts); });
  EXPECT_TRUE(testing::eventually([&] { return puts > 2000; }));
  stop = true;
  writer.join();
  EXPECT_GE(node->stats().pinned_objects, 8u);
  const std::uint64_t hits = reader.report().tally.hits;
  reader.signal(SIGCONT);
  EXPECT_TRUE(testing::eventually([&] { return reader.report().tally.hits > hits + 20; }));
  EXPECT_EQ(reader.report().tally.wrong, 0u);
  reader.kill();
  EXPECT_TRUE(testing::eventually([&] { return node->stats().pinned_objects == 0; }));
}

}  // namespace
}  // namespace kvferry::store
