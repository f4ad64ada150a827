// Address ranges, arenas, copy lanes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "memory/address_range.h"
#include "memory/arena.h"
#include "memory/copy_lanes.h"

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
  EXPECT_TRUE(owner->quiesce(deadline_in(milliseconds(5000)), {}).ok());
}

TEST(CopyLanes, DeadPeerDoesNotDelayTheOwner) {
  auto lanes = CopyLanes::create();
  lanes->begin(0);
  std::atomic<int> asked = 0;
  EXPECT_TRUE(lanes->quiesce(deadline_in(milliseconds(5000)), [&] { return ++asked == 2; }).ok());
  EXPECT_EQ(asked, 2);
}

TEST(CopyLanes, ForeignMemoryIsRefused) {
  const auto arena = Arena::create(64, "small");
  EXPECT_EQ(CopyLanes::map(duplicate(arena->fd())).status().code(), Code::kProtocolError);
}

}  // namespace
}  // namespace kvferry
