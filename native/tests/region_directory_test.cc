#include "memory/region_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "base/limits.h"

namespace kvferry {
namespace {

constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kEntryBytes = 64;

UniqueFd duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

DirectoryEntry sample(std::uint32_t id, std::uint32_t generation = 1) {
  return {{id, generation}, 0x7f0000001000, 4096, kRemoteRead | kRemoteWrite, MemoryKind::kHost, 0, 0};
}

class RegionDirectory : public testing::Test {
 protected:
  NodeId owner = NodeId::random();
  Result<RegionDirectoryWriter> writer = RegionDirectoryWriter::create(owner);
  Result<RegionDirectoryReader> reader = RegionDirectoryReader::open(duplicate(writer->fd()), owner);
};

TEST_F(RegionDirectory, PublishedEntriesAreSeen) {
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  EXPECT_EQ(reader->read(5).status().code(), Code::kNotFound);
  DirectoryEntry entry = sample(5, 9);
  entry.arena_index = 3;
  entry.arena_offset = 8192;
  writer->publish(entry);
  writer->publish(sample(kMaxRegions));
  EXPECT_EQ(*reader->read(5), entry);
  EXPECT_EQ(*reader->read(kMaxRegions), sample(kMaxRegions));
  EXPECT_EQ(reader->read(0).status().code(), Code::kNotFound);
  EXPECT_EQ(reader->read(kMaxRegions + 1).status().code(), Code::kNotFound);
  EXPECT_EQ(reader->read(UINT32_MAX).status().code(), Code::kNotFound);
}

TEST_F(RegionDirectory, ResolveChecksGenerationAccessAndRange) {
  DirectoryEntry entry = sample(2, 7);
  entry.access = kRemoteRead;
  writer->publish(entry);
  EXPECT_EQ(reader->resolve({2, 7}, 0, 4096, Op::kRead)->base, entry.base);
  EXPECT_EQ(reader->resolve({2, 6}, 0, 1, Op::kRead).status().code(), Code::kStale);
  EXPECT_EQ(reader->resolve({2, 7}, 0, 1, Op::kWrite).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(reader->resolve({2, 7}, 4096, 1, Op::kRead).status().code(), Code::kOutOfRange);
  EXPECT_EQ(reader->resolve({2, 7}, UINT64_MAX, 2, Op::kRead).status().code(), Code::kOutOfRange);
  EXPECT_EQ(reader->resolve({3, 1}, 0, 1, Op::kRead).status().code(), Code::kNotFound);
}

TEST_F(RegionDirectory, WithdrawalIsSeenAfterTheCopy) {
  writer->publish(sample(2, 7));
  EXPECT_TRUE(reader->still_current({2, 7}).ok());
  writer->withdraw(2);
  EXPECT_EQ(reader->still_current({2, 7}).code(), Code::kStale);
  writer->publish(sample(2, 8));
  EXPECT_EQ(reader->still_current({2, 7}).code(), Code::kStale);
  EXPECT_TRUE(reader->still_current({2, 8}).ok());
}

TEST_F(RegionDirectory, ProbeIsReadableAtItsAddress) {
  const DirectoryProbe probe = reader->probe();
  std::uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<const void*>(probe.address), sizeof(value));
  EXPECT_EQ(value, probe.value);
}

TEST_F(RegionDirectory, OtherOwnerIsRefused) {
  const auto other = RegionDirectoryReader::open(duplicate(writer->fd()), NodeId::random());
  EXPECT_EQ(other.status().code(), Code::kProtocolError);
}

TEST_F(RegionDirectory, PeersCannotWriteToIt) {
  void* const mapped = ::mmap(nullptr, writer->length(), PROT_READ | PROT_WRITE, MAP_SHARED, writer->fd(), 0);
  EXPECT_EQ(mapped, MAP_FAILED);
  EXPECT_EQ(::pwrite(writer->fd(), "x", 1, 0), -1);
}

TEST_F(RegionDirectory, ReadersNeverSeeAMixture) {
  std::atomic<bool> stop = false;
  std::jthread changer([&] {
    for (std::uint32_t generation = 1; !stop; ++generation) {
      DirectoryEntry entry = sample(1, generation);
      entry.base = generation * std::uint64_t{0x10000};
      entry.length = generation;
      writer->publish(entry);
      if (generation % 64 == 0) std::this_thread::yield();
      if (generation % 3 == 0) writer->withdraw(1);
    }
  });
  int seen = 0;
  const Deadline end = deadline_in(milliseconds(20000));
  while (seen < 1000 && !expired(end)) {
    const auto entry = reader->read(1);
    if (!entry.ok()) {
      EXPECT_TRUE(entry.status().code() == Code::kNotFound || entry.status().code() == Code::kUnavailable)
          << entry.status().to_string();
      continue;
    }
    ++seen;
    ASSERT_EQ(entry->length, entry->key.generation);
    ASSERT_EQ(entry->base, entry->key.generation * std::uint64_t{0x10000});
  }
  stop = true;
  EXPECT_EQ(seen, 1000);
}

// What a hostile owner may put there.
class HostileDirectory : public testing::Test {
 protected:
  HostileDirectory() {
    const auto good = RegionDirectoryWriter::create(owner_);
    length_ = good->length();
    fd_ = UniqueFd(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(length_)), 0);
    EXPECT_EQ(::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
    data_ = static_cast<std::byte*>(::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    std::vector<std::byte> header(kHeaderBytes);
    EXPECT_EQ(::pread(good->fd(), header.data(), header.size(), 0), static_cast<ssize_t>(header.size()));
    std::memcpy(data_, header.data(), header.size());
  }
  ~HostileDirectory() override { ::munmap(data_, length_); }
  HostileDirectory(const HostileDirectory&) = delete;
  HostileDirectory& operator=(const HostileDirectory&) = delete;

  void put(std::size_t offset, std::uint64_t value) { std::memcpy(data_ + offset, &value, sizeof(value)); }
  void put_entry(std::uint32_t id, std::initializer_list<std::uint64_t> words) {
    std::size_t offset = kHeaderBytes + kEntryBytes * (id - 1);
    for (const std::uint64_t word : words) put(std::exchange(offset, offset + 8), word);
  }
  Result<RegionDirectoryReader> open() { return RegionDirectoryReader::open(duplicate(fd_.get()), owner_); }

  NodeId owner_ = NodeId::random();
  std::uint64_t length_ = 0;
  UniqueFd fd_;
  std::byte* data_ = nullptr;
};

TEST_F(HostileDirectory, GoodCopyIsAccepted) {
  put_entry(1, {0, 1 | std::uint64_t{5} << 32, 0x1000, 4096, kRemoteRead, 0});
  EXPECT_EQ(open()->read(1)->key, (RegionKey{1, 5}));
}

TEST_F(HostileDirectory, WrongMagicOrCapacityIsRefused) {
  put(24, kMaxRegions + 1);
  EXPECT_EQ(open().status().code(), Code::kProtocolError);
  put(24, kMaxRegions);
  put(0, 0);
  EXPECT_EQ(open().status().code(), Code::kProtocolError);
}

TEST_F(HostileDirectory, SenselessEntriesAreRefused) {
  const std::uint64_t key = 1 | std::uint64_t{5} << 32;
  put_entry(1, {0, 2 | std::uint64_t{5} << 32, 0x1000, 4096, kRemoteRead, 0});  // id of another entry
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, 1, 0x1000, 4096, kRemoteRead, 0});  // generation 0
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0, 4096, kRemoteRead, 0});  // null
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0x1000, 0, kRemoteRead, 0});  // empty
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0x1000, UINT64_MAX, kRemoteRead, 0});  // wraps
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0x1000, 4096, 0x80 | kRemoteRead, 0});  // access bits
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0x1000, 4096, 0x100 | kRemoteRead, 0});  // not host memory
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0x1000, 4096, 0x10000 | kRemoteRead, 0});  // reserved bits
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0x1000, 4096, std::uint64_t{kMaxArenas + 1} << 32 | kRemoteRead, 0});
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
  put_entry(1, {0, key, 0x1000, 4096, std::uint64_t{1} << 32 | kRemoteRead, UINT64_MAX});  // wraps in the arena
  EXPECT_EQ(open()->read(1).status().code(), Code::kProtocolError);
}

TEST_F(HostileDirectory, EntryLeftInTheMiddleOfAChangeIsNotWaitedFor) {
  put_entry(1, {1, 1 | std::uint64_t{5} << 32, 0x1000, 4096, kRemoteRead, 0});
  EXPECT_EQ(open()->read(1).status().code(), Code::kUnavailable);
  EXPECT_EQ(open()->still_current({1, 5}).code(), Code::kStale);
}

}  // namespace
}  // namespace kvferry
