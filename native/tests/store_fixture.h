// A node's store on memory that forked children share, and bytes that tell whose they are.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/random.h"
#include "store/local_reader.h"
#include "store/local_store.h"

namespace kvferry::store::testing {

class SharedBlock {  // zeroed, shared with children that are forked later
 public:
  explicit SharedBlock(std::uint64_t bytes)
      : bytes_(bytes),
        data_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  SharedBlock(SharedBlock&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  SharedBlock& operator=(SharedBlock&&) = delete;
  ~SharedBlock() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::uint64_t bytes_;
  std::byte* data_;
};

// Object `number`: its key, id, and bytes. Two versions of it differ in every word.
inline std::string key_of(std::uint64_t number) { return "object-" + std::to_string(number); }
inline ObjectId id_of(std::uint64_t number) { return ObjectIds("").of(key_of(number)); }

inline std::uint64_t word_of(const ObjectId& id, std::uint64_t version, std::uint64_t index) {
  return id.lo ^ (id.hi + version) * 0x9e3779b97f4a7c15ULL ^ index << 20;
}
inline ContentDigest digest_for(const ObjectId& id, std::uint64_t version = 0) { return {id.hi ^ version, id.lo}; }

inline void fill(const LocalReader* reader, const std::vector<std::span<std::byte>>& arenas, const ObjectId& id,
                 std::uint64_t version, const std::vector<Place>& places) {
  std::uint64_t at = 0;
  for (const Place& place : places) {
    const auto target =
        reader != nullptr ? reader->memory(place) : arenas[place.arena].subspan(place.offset, place.length);
    for (std::uint64_t i = 0; i < place.length; i += 8, at += 8) {
      const std::uint64_t word = word_of(id, version, at);
      std::memcpy(target.data() + i, &word, std::min<std::uint64_t>(8, place.length - i));
    }
  }
}

inline bool holds(const std::vector<std::span<std::byte>>& arenas, const ObjectId& id, std::uint64_t version,
                  const std::vector<Place>& places) {
  std::uint64_t at = 0;
  for (const Place& place : places) {
    const auto source = arenas[place.arena].subspan(place.offset, place.length);
    for (std::uint64_t i = 0; i < place.length; i += 8, at += 8) {
      const std::uint64_t word = word_of(id, version, at);
      if (std::memcmp(source.data() + i, &word, std::min<std::uint64_t>(8, place.length - i)) != 0) return false;
    }
  }
  return true;
}

inline Deadline soon() { return deadline_in(milliseconds(20000)); }

class StoreOnMemory {
 public:
  explicit StoreOnMemory(NodeOptions options, std::size_t arenas = 1, std::shared_ptr<log::Disk> disk = nullptr)
      : options_(std::move(options)),
        disk_(std::move(disk)),
        index_(LocalStore::index_bytes(options_)),
        pins_(LocalStore::pins_bytes(options_)) {
    fill_random({reinterpret_cast<std::byte*>(node_id_.bytes.data()), node_id_.bytes.size()});
    for (std::size_t i = 0; i < arenas; ++i) blocks_.emplace_back(options_.dram_bytes / arenas);
    open();
  }
  ~StoreOnMemory() {
    if (!store_) return;
    const Status status = store_->check();
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  void open() {
    LocalStoreOptions options{arenas(), index_.span(), pins_.span(), node_id_, options_, disk_};
    auto created = LocalStore::create(std::move(options));
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    store_ = std::move(*created);
  }
  LocalStore* operator->() const { return store_.get(); }
  LocalStore& store() const { return *store_; }
  const NodeId& node_id() const { return node_id_; }
  std::vector<std::span<std::byte>> arenas() const {
    std::vector<std::span<std::byte>> all;
    for (const SharedBlock& block : blocks_) all.push_back(block.span());
    return all;
  }
  SharedMemory shared() const { return {index_.span(), pins_.span(), arenas()}; }
  // A client's reader; `gone` as add_client() takes it.
  std::unique_ptr<LocalReader> reader(std::uint32_t page) const {
    auto attached = LocalReader::attach(shared(), page, node_id_);
    EXPECT_TRUE(attached.ok()) << attached.status().to_string();
    return attached.ok() ? std::move(*attached) : nullptr;
  }
  std::unique_ptr<LocalReader> new_client() const {
    const auto page = store_->add_client([] { return false; });
    EXPECT_TRUE(page.ok()) << page.status().to_string();
    return page.ok() ? reader(*page) : nullptr;
  }

  static NewObject object(std::uint64_t number, std::uint64_t bytes) {
    NewObject object;
    object.key = key_of(number);
    object.id = id_of(number);
    object.bytes = bytes;
    return object;
  }
  // Reserve, write, commit.
  Status put(const NewObject& object, std::uint64_t version = 0, Session session = 1) const {
    const auto reserved = store_->reserve(session, object, soon());
    if (!reserved.ok()) return reserved.status();
    if (reserved->existing) return {};
    fill(nullptr, arenas(), object.id, version, reserved->places);
    return commit(session, reserved->put, digest_for(object.id, version)).status();
  }
  // As whoever tells the directory: one that was removed meanwhile is committed again.
  Result<bool> commit(Session session, PutId put, const ContentDigest& digest) const {
    for (;;) {
      auto made = store_->commit(session, put, digest);
      if (made.status().code() != Code::kStale) return made;
    }
  }
  Status put(std::uint64_t number, std::uint64_t bytes) const { return put(object(number, bytes)); }
  bool has(std::uint64_t number) const { return store_->find(id_of(number)).has_value(); }
  bool intact(const ObjectId& id, const std::vector<Place>& places, std::uint64_t version = 0) const {
    return testing::holds(arenas(), id, version, places);
  }
  std::uint64_t counter(const std::string& name) const { return store_->stats().counters.at(name); }

 private:
  NodeOptions options_;
  std::shared_ptr<log::Disk> disk_;
  NodeId node_id_;
  SharedBlock index_;
  SharedBlock pins_;
  std::vector<SharedBlock> blocks_;
  std::unique_ptr<LocalStore> store_;
};

// Asks some times a second; false after 20 seconds.
template <typename Condition>
bool eventually(Condition condition) {
  for (const Deadline deadline = soon(); !expired(deadline);) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return condition();
}

}  // namespace kvferry::store::testing
