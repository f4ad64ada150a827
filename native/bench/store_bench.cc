// What one client of a node's store does without a message, and what a put costs the node, by the count of objects.
//   store_bench [OBJECTS...]      default 10000 100000 1000000 2000000
// All measures of one size are taken in turn, in short rounds; prints medians. One thread, no bytes are moved.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "memory/arena.h"
#include "store/local_reader.h"
#include "store/local_store.h"

namespace {

using namespace kvferry;         // NOLINT: a program of one file
using namespace kvferry::store;  // NOLINT

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

Arena arena_of(std::uint64_t bytes) {
  ArenaOptions options;
  options.huge_pages = true;  // as the node's: a look-up misses the TLB more often than the cache
  auto arena = Arena::create(bytes, "store-bench", options);
  if (!arena.ok()) fail(arena.status().to_string());
  return std::move(*arena);
}

std::span<std::byte> bytes_of(const Arena& arena) { return {arena.data(), arena.length()}; }

constexpr std::size_t kCalls = 20000;  // of a round: some milliseconds

struct Measure {
  const char* name;
  std::function<void(std::span<const ObjectId>)> run;
  std::vector<double> ns{};
};

class Bench {
 public:
  explicit Bench(std::uint64_t objects) : objects_(objects), random_(objects) {
    NodeOptions options;
    options.max_objects = objects + kCalls;
    options.dram_bytes = options.max_objects * 64;
    options.watermark_high = 1;
    for (const std::uint64_t bytes :
         {options.dram_bytes, LocalStore::index_bytes(options), LocalStore::pins_bytes(options)}) {
      memory_.push_back(arena_of(bytes));
    }
    LocalStoreOptions local;
    local.arenas = {bytes_of(memory_[0])};
    local.index = bytes_of(memory_[1]);
    local.pins = bytes_of(memory_[2]);
    local.node = options;
    const SharedMemory shared{local.index, local.pins, local.arenas};
    auto store = LocalStore::create(std::move(local));
    if (!store.ok()) fail(store.status().to_string());
    store_ = std::move(*store);
    reader_ = std::move(*LocalReader::attach(shared, *store_->add_client([] { return false; }), {}));
    const ObjectIds ids("");
    for (std::uint64_t i = 0; i < objects; ++i) {
      NewObject object = object_of(i);
      object.id = ids.of(object.key);
      ids_.push_back(object.id);
      put(object);
    }
  }

  void run(int rounds) {
    std::vector<std::uint8_t> found(kCalls);
    std::vector<Measure> measures{
        {"exists", [&](auto ids) { reader_->exists(ids, found); }},
        {"find",
         [&](auto ids) {
           for (const ObjectId& id : ids) expect(reader_->find(id).has_value());
         }},
        {"pin and unpin",
         [&](auto ids) {
           for (const ObjectId& id : ids) reader_->unpin(**reader_->pin(id));
         }},
        {"find absent",
         [&](auto ids) {
           for (ObjectId id : ids) expect(!reader_->find({~id.hi, id.lo}));
         }},
        {"reserve and commit", [&](auto ids) { put_new(ids.size()); }},
    };
    for (int round = 0; round < rounds; ++round) {
      for (Measure& measure : measures) {
        std::vector<ObjectId> ids;
        for (std::size_t i = 0; i < kCalls; ++i) ids.push_back(ids_[random_() % ids_.size()]);
        const auto start = std::chrono::steady_clock::now();
        measure.run(ids);
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        measure.ns.push_back(took.count() / static_cast<double>(kCalls));
        take_back();
      }
    }
    for (Measure& measure : measures) {
      std::sort(measure.ns.begin(), measure.ns.end());
      const double median = measure.ns[measure.ns.size() / 2];
      std::printf("| %llu | %s | %.0f | %.2f |\n", static_cast<unsigned long long>(objects_), measure.name, median,
                  1e3 / median);
    }
    const NodeStats stats = store_->stats();
    std::printf("| %llu | metadata, bytes per object | %.1f | |\n", static_cast<unsigned long long>(objects_),
                static_cast<double>(stats.metadata_bytes) / static_cast<double>(stats.objects));
  }

 private:
  static void expect(bool right) {
    if (!right) fail("wrong answer");
  }
  static NewObject object_of(std::uint64_t number) {
    NewObject object;
    object.key = std::to_string(number);
    object.key.insert(0, 32 - object.key.size(), '0');
    object.bytes = 64;
    return object;
  }
  void put(const NewObject& object) {
    const auto reserved = store_->reserve(1, object, deadline_in(milliseconds(1000)));
    if (!reserved.ok() || !store_->commit(1, reserved->put, {object.id.hi, object.id.lo}).ok()) fail("put");
  }
  void put_new(std::size_t count) {
    NewObject object = object_of(objects_);
    for (std::size_t i = 0; i < count; ++i) {
      object.id = {random_(), random_()};
      new_.push_back(object.id);
      put(object);
    }
  }
  void take_back() {
    for (const ObjectId& id : new_) expect(store_->remove(id));
    new_.clear();
  }

  std::uint64_t objects_;
  std::mt19937_64 random_;
  std::vector<Arena> memory_;
  std::unique_ptr<LocalStore> store_;
  std::unique_ptr<LocalReader> reader_;
  std::vector<ObjectId> ids_, new_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::uint64_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {10'000, 100'000, 1'000'000, 2'000'000};
  std::printf("| objects | call | ns | million per second |\n| --- | --- | --- | --- |\n");
  for (const std::uint64_t objects : sizes) Bench(objects).run(21);
  return 0;
}
