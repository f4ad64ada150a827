// Address ranges, arenas, copy lanes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "memory/address_range.h"
#include "memory/arena.h"
#include "memory/arena_table.h"
#include "memory/copy_lanes.h"
#include "memory/page_maker.h"

namespace kvferry {
namespace {

const std::uint64_t kPage = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

class Pages {  // some anonymous pages of this process
 public:
  explicit Pages(std::uint64_t count) : length_(count * kPage) {
    data_ =
        static_cast<std::byte*>(::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~Pages() { ::munmap(data_, length_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* page(std::uint64_t i) const { return data_ + i * kPage; }
  std::uint64_t length() const { return length_; }

 private:
  std::uint64_t length_;
  std::byte* data_;
};

UniqueFd duplicate(int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST(AddressRange, RangeFitsDoesNotOverflow) {
  EXPECT_TRUE(range_fits(0, 10, 10));
  EXPECT_TRUE(range_fits(10, 0, 10));
  EXPECT_FALSE(range_fits(1, 10, 10));
  EXPECT_FALSE(range_fits(11, 0, 10));
  EXPECT_FALSE(range_fits(UINT64_MAX, 2, UINT64_MAX));
  EXPECT_FALSE(range_fits(2, UINT64_MAX, UINT64_MAX));
  EXPECT_TRUE(range_fits(0, UINT64_MAX, UINT64_MAX));
}

TEST(AddressRange, MappedMemoryIsAccepted) {
  const Pages pages(4);
  EXPECT_TRUE(check_mapped(pages.page(0), pages.length(), true).ok());
  EXPECT_TRUE(check_mapped(pages.page(0) + 1, pages.length() - 2, true).ok());
  int on_stack = 0;
  EXPECT_TRUE(check_mapped(&on_stack, sizeof(on_stack), true).ok());
}

TEST(AddressRange, AdjacentMappingsOfDifferentKindCount) {
  const Pages pages(4);
  ASSERT_EQ(::mprotect(pages.page(1), kPage, PROT_READ), 0);
  EXPECT_TRUE(check_mapped(pages.page(0), pages.length(), false).ok());
  const Status status = check_mapped(pages.page(0), pages.length(), true);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("not writable"), std::string::npos);
}

TEST(AddressRange, HolesAndForbiddenPagesAreRefused) {
  const Pages pages(6);
  ASSERT_EQ(::mprotect(pages.page(4), kPage, PROT_NONE), 0);
  EXPECT_NE(check_mapped(pages.page(3), 3 * kPage, false).message().find("not readable"), std::string::npos);
  ASSERT_EQ(::munmap(pages.page(2), kPage), 0);
  EXPECT_TRUE(check_mapped(pages.page(0), 2 * kPage, true).ok());
  EXPECT_NE(check_mapped(pages.page(0), 2 * kPage + 1, true).message().find("not mapped"), std::string::npos);
  EXPECT_FALSE(check_mapped(pages.page(2), 1, false).ok());
}

TEST(AddressRange, NonsenseIsRefused) {
  const Pages pages(1);
  EXPECT_EQ(check_mapped(nullptr, 1, false).code(), Code::kInvalidArgument);
  EXPECT_EQ(check_mapped(pages.page(0), 0, false).code(), Code::kInvalidArgument);
  EXPECT_EQ(check_mapped(pages.page(0), UINT64_MAX, false).code(), Code::kInvalidArgument);
  EXPECT_EQ(check_mapped(reinterpret_cast<void*>(16), 16, false).code(), Code::kInvalidArgument);
}

TEST(AddressRange, HugePageAdviceStaysInsideTheRange) {
  const Pages pages(3);
  std::memset(pages.page(0), 5, pages.length());
  advise_huge_pages(pages.page(0), pages.length());  // too small for any: nothing may happen
  collapse_into_huge_pages(pages.page(0), pages.length(), milliseconds(100));
  EXPECT_EQ(*pages.page(2), std::byte{5});
}

TEST(AddressRange, CollapsingKeepsTheContents) {
  const Pages pages(2048);
  for (std::size_t i = 0; i < 2048; ++i) std::memset(pages.page(i), static_cast<int>(i % 251), kPage);
  advise_huge_pages(pages.page(0), pages.length());
  collapse_into_huge_pages(pages.page(0), pages.length(), milliseconds(2000));
  for (std::size_t i = 0; i < 2048; ++i) {
    ASSERT_EQ(pages.page(i)[0], static_cast<std::byte>(i % 251)) << i;
    ASSERT_EQ(pages.page(i)[kPage - 1], static_cast<std::byte>(i % 251)) << i;
  }
}

TEST(Arena, IsZeroedAndSharedByDescriptor) {
  const auto arena = Arena::create(3 * kPage, "test", {true, {}});
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  EXPECT_EQ(arena->data()[3 * kPage - 1], std::byte{0});
  const auto other = Arena::map(duplicate(arena->fd()), 3 * kPage, true);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  other->data()[7] = std::byte{42};
  EXPECT_EQ(arena->data()[7], std::byte{42});
}

// How much of the mapping at `data` is in huge pages, as the kernel shows it.
std::uint64_t huge_bytes_of(const void* data) {
  std::ostringstream wanted;
  wanted << std::hex << reinterpret_cast<std::uintptr_t>(data) << '-';
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with(wanted.str())) found = true;
    if (!found) continue;
    std::istringstream fields(line);
    std::string name;
    std::uint64_t kib = 0;
    fields >> name >> kib;
    if ((name == "ShmemPmdMapped:" || name == "Shared_Hugetlb:" || name == "Private_Hugetlb:") && kib > 0) {
      return kib << 10;
    }
    if (name == "VmFlags:") break;
  }
  return 0;
}

TEST(Arena, HugePagesAreWhatItSays) {
  const std::uint64_t length = 9 * kHugePageBytes + kPage;
  const auto arena = Arena::create(length, "huge", {true, {}});
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  ASSERT_GE(arena->length(), length);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena->data()) % kHugePageBytes, 0u);
  for (std::uint64_t at = 0; at < length; at += kPage) ASSERT_EQ(arena->data()[at], std::byte{0}) << at;
  if (arena->page_bytes() != kHugePageBytes) {
    EXPECT_EQ(arena->page_bytes(), kPage);
    GTEST_SKIP() << "this kernel has no huge pages for shared memory";
  }
  EXPECT_GE(huge_bytes_of(arena->data()), 9 * kHugePageBytes);
  // A peer maps the same pages, so it needs no more faults than they are many.
  const auto other = Arena::map(duplicate(arena->fd()), arena->length(), true);
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  for (std::uint64_t at = 0; at < length; at += kHugePageBytes) other->data()[at] = std::byte{7};
  EXPECT_GE(huge_bytes_of(other->data()), 9 * kHugePageBytes);
  EXPECT_EQ(arena->data()[8 * kHugePageBytes], std::byte{7});
}

TEST(Arena, SmallPagesUnlessAskedForOthers) {
  const auto arena = Arena::create(2 * kHugePageBytes, "small");
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  EXPECT_EQ(arena->page_bytes(), kPage);
  EXPECT_EQ(arena->length(), 2 * kHugePageBytes);
}

TEST(PageMaker, SeveralThreadsMakeAllPages) {
  const std::uint64_t length = (100u << 20) + 12345;
  for (const bool huge_pages : {false, true}) {
    const UniqueFd fd(::memfd_create("pages", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(length)), 0);
    void* const data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(data, MAP_FAILED);
    const auto made = make_pages({fd.get(), static_cast<std::byte*>(data), length, kPage}, huge_pages, 4);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    struct stat info {};
    ASSERT_EQ(::fstat(fd.get(), &info), 0);
    EXPECT_GE(static_cast<std::uint64_t>(info.st_blocks) * 512, length);  // nothing is left to be allocated by a fault
    EXPECT_EQ(static_cast<std::byte*>(data)[length - 1], std::byte{0});
    ::munmap(data, length);
  }
}

TEST(PageMaker, WhatCannotBeAllocatedIsAnError) {
  const UniqueFd fd(::memfd_create("pages", MFD_CLOEXEC));  // empty: there is nothing behind the mapping
  void* const data = ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(data, MAP_FAILED);
  const auto made = make_pages({fd.get(), static_cast<std::byte*>(data), 4 * kPage, kPage}, false, 1);
  EXPECT_EQ(made.status().code(), Code::kResourceExhausted);
  ::munmap(data, 4 * kPage);
}

TEST(Arena, MoreThanThereIsIsRefusedBeforeTheKernelKills) {
  const Status status = Arena::create(std::uint64_t{1} << 46, "test", {true, {}}).status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
}

TEST(Arena, DiscardedMemoryIsGivenBackAlthoughOthersMapIt) {
  const std::uint64_t length = 3 * kHugePageBytes;
  auto arena = Arena::create(length, "test", {true, {}});
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  const auto other = Arena::map(duplicate(arena->fd()), arena->length(), false);
  ASSERT_TRUE(other.ok());
  arena->data()[length - 1] = std::byte{9};
  EXPECT_EQ(other->data()[length - 1], std::byte{9});
  arena->discard();
  struct stat info {};
  ASSERT_EQ(::fstat(other->fd(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
  EXPECT_EQ(other->data()[length - 1], std::byte{0});
}

TEST(ArenaTable, WhatIsRemovedNeedsNoMemoryAnyMore) {
  ArenaTable table;
  const auto placed = table.add(*Arena::create(2 * kHugePageBytes, "test"), true);
  ASSERT_TRUE(placed.ok());
  auto grant = table.grant(placed->first);
  ASSERT_TRUE(grant.ok());
  const auto peers = Arena::map(std::move(grant->fd), grant->length, true);
  ASSERT_TRUE(peers.ok());
  table.remove(placed->first);
  EXPECT_EQ(table.grant(placed->first).status().code(), Code::kNotFound);
  struct stat info {};
  ASSERT_EQ(::fstat(peers->fd(), &info), 0);
  EXPECT_EQ(info.st_blocks, 0);
}

TEST(Arena, CannotShrinkUnderAnyone) {
  const auto arena = Arena::create(2 * kPage, "test");
  EXPECT_EQ(::ftruncate(arena->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Arena, WhatCouldShrinkIsNotMapped) {
  UniqueFd plain(::memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(plain.get(), static_cast<off_t>(kPage)), 0);
  EXPECT_EQ(Arena::map(std::move(plain), kPage, false).status().code(), Code::kProtocolError);
  EXPECT_EQ(Arena::map(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), kPage, false).status().code(),
            Code::kProtocolError);
  EXPECT_EQ(Arena::map(UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), kPage, false).status().code(),
            Code::kProtocolError);
  EXPECT_EQ(Arena::map(UniqueFd(), kPage, false).status().code(), Code::kProtocolError);
}

TEST(Arena, SizeMustBeTheAnnouncedOne) {
  const auto arena = Arena::create(2 * kPage, "test");
  EXPECT_EQ(Arena::map(duplicate(arena->fd()), kPage, false).status().code(), Code::kProtocolError);
  EXPECT_EQ(Arena::map(duplicate(arena->fd()), 3 * kPage, false).status().code(), Code::kProtocolError);
  EXPECT_EQ(Arena::map(duplicate(arena->fd()), 0, false).status().code(), Code::kProtocolError);
}

TEST(Arena, ImpossibleSizesFailWithoutAFault) {
  EXPECT_EQ(Arena::create(0, "test").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::create(UINT64_MAX, "test").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Arena::create(std::uint64_t{1} << 60, "test").status().code(), Code::kResourceExhausted);
}

TEST(Arena, MovesKeepOneOwner) {
  auto first = Arena::create(kPage, "first");
  auto second = Arena::create(2 * kPage, "second");
  std::byte* const data = second->data();
  *first = std::move(*second);
  EXPECT_EQ(first->data(), data);
  EXPECT_EQ(first->length(), 2 * kPage);
  data[2 * kPage - 1] = std::byte{1};
}

TEST(CopyLanes, IdleLanesDoNotDelayTheOwner) {
  auto lanes = CopyLanes::create();
  ASSERT_TRUE(lanes.ok());
  EXPECT_TRUE(lanes->quiesce(deadline_in(milliseconds(0)), {}).ok());
  { const CopyLanes::Scope copy(*lanes, 3); }
  EXPECT_TRUE(lanes->quiesce(deadline_in(milliseconds(0)), {}).ok());
}

TEST(CopyLanes, OwnerWaitsForACopyUnderWayButNotForLaterOnes) {
  auto owner = CopyLanes::create();
  auto peer = CopyLanes::map(duplicate(owner->fd()));
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  peer->begin(kMaxAttachLanes - 1);
  EXPECT_EQ(owner->quiesce(deadline_in(milliseconds(20)), {}).code(), Code::kDeadlineExceeded);
  std::jthread copier([&] {
    std::this_thread::sleep_for(milliseconds(30));
    peer->end(kMaxAttachLanes - 1);
    peer->begin(kMaxAttachLanes - 1);  // the next copy looks the region up anew, so it is of no concern
  });
  EXPECT_TRUE(owner->quiesce(deadline_in(milliseconds(20000)), {}).ok());
}

TEST(CopyLanes, DeadPeerDoesNotDelayTheOwner) {
  auto lanes = CopyLanes::create();
  lanes->begin(0);
  std::atomic<int> asked = 0;
  EXPECT_TRUE(lanes->quiesce(deadline_in(milliseconds(20000)), [&] { return ++asked == 2; }).ok());
  EXPECT_EQ(asked, 2);
}

TEST(CopyLanes, ForeignMemoryIsRefused) {
  const auto arena = Arena::create(64, "small");
  EXPECT_EQ(CopyLanes::map(duplicate(arena->fd())).status().code(), Code::kProtocolError);
}

}  // namespace
}  // namespace kvferry
