// What every transport must do, whoever owns the memory. A *_conformance_test.cc includes this once and instantiates
// it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "base/tls_library.h"
#include "child_process.h"
#include "engine_fixture.h"
#include "mapped_files.h"

namespace kvferry::testing {

struct Setup {
  std::string name;
  std::string transport;
  bool arena = false;      // the owner's memory: allocated by its engine, or foreign
  std::string fault_plan;  // of the initiator
  bool checksum = false;
  std::string security;   // see secured()
  bool own_node = false;  // the initiator is its own peer; with "file", what it owns is a file that we have mapped
  bool io_uring = true;
};

// Zeroed memory of which only the pages that are touched exist.
class SparseMemory {
 public:
  explicit SparseMemory(std::uint64_t length) : length_(length) {
    void* const data =
        ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data != MAP_FAILED) data_ = static_cast<std::byte*>(data);
  }
  ~SparseMemory() {
    if (data_ != nullptr) ::munmap(data_, length_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  const std::uint64_t length_;
  std::byte* data_ = nullptr;
};

inline void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.name; }

inline std::string setup_name(const ::testing::TestParamInfo<Setup>& setup) { return setup.param.name; }

class TransportConformance : public ::testing::TestWithParam<Setup> {
 protected:
  static constexpr std::uint64_t kLength = 12u << 20;

  void SetUp() override {
    const auto tls = TlsLibrary::get();
    if (GetParam().security == "tls" && !tls.ok()) GTEST_SKIP() << tls.status().to_string();
    EngineOptions near_options = options();
    near_options.fault_plan = GetParam().fault_plan;
    near_ = make_engine(near_options);
    far_ = GetParam().own_node ? near_ : make_engine(options());
    ASSERT_TRUE(near_ && far_);
    local_ = register_buffer(*near_, kLength, 1);
    remote_region_ = own(kLength, 2, "far", &remote_);
    peer_ = GetParam().own_node ? near_->self() : connect(*near_, *far_);
    ASSERT_TRUE(peer_);
  }
  void TearDown() override {
    if (!near_ || !far_) return;
    near_->close();
    far_->close();
  }

  static EngineOptions options() {
    EngineOptions options = options_for({GetParam().own_node ? "tcp" : GetParam().transport});
    options.allow_fallback = false;
    options.checksum = GetParam().checksum;
    options.io_uring = GetParam().io_uring;
    return secured(options, GetParam().security);
  }

  // Registers memory with the far engine, of the kind under test.
  RegionInfo own(std::uint64_t length, std::uint64_t seed, const std::string& name, std::span<std::byte>* memory,
                 std::uint8_t access = kRemoteRead | kRemoteWrite) {
    if (GetParam().arena) {
      auto region = far_->allocate(length, name, access);
      EXPECT_TRUE(region.ok()) << region.status().to_string();
      *memory = {static_cast<std::byte*>(region->second), length};
      fill(*memory, seed);
      return region->first;
    }
    if (GetParam().transport == "file") {
      auto region = files_.open(*far_, length, access, memory);
      EXPECT_TRUE(region.ok()) << region.status().to_string();
      fill(*memory, seed);
      return *region;
    }
    owned_.push_back(std::make_unique<Buffer>(register_buffer(*far_, length, seed, access, name)));
    *memory = owned_.back()->bytes;
    return owned_.back()->region;
  }

  Piece piece(std::uint64_t local_offset, std::uint64_t remote_offset, std::uint64_t length) const {
    return {local_.region.key.id, remote_region_.key.id, local_offset, remote_offset, length};
  }

  MappedFiles files_;
  std::vector<std::unique_ptr<Buffer>> owned_;  // the memory outlives the engines that move it
  Buffer local_;
  std::shared_ptr<Engine> near_, far_;
  std::span<std::byte> remote_;
  RegionInfo remote_region_;
  std::shared_ptr<Peer> peer_;
};

TEST_P(TransportConformance, MovesEverySizeExactly) {
  for (const std::uint64_t length : {1ull, 7ull, 4095ull, 4096ull, 65536ull, (1ull << 20) + 1, (9ull << 20) + 13}) {
    for (const Op op : {Op::kRead, Op::kWrite}) {
      fill(std::span(local_.bytes).first(length + 4096), 1);
      fill(remote_.first(length + 4096), 2);
      ASSERT_OK(run(*near_, peer_, {piece(1001, 2003, length)}, op));
      const std::span<std::byte> target = op == Op::kRead ? std::span(local_.bytes) : remote_;
      const std::uint64_t from = op == Op::kRead ? 2003 : 1001, to = op == Op::kRead ? 1001 : 2003;
      const std::uint64_t source_seed = op == Op::kRead ? 2 : 1, target_seed = op == Op::kRead ? 1 : 2;
      std::size_t wrong = 0;
      for (std::uint64_t i = 0; i < length; ++i) wrong += target[to + i] != pattern(source_seed, from + i);
      EXPECT_EQ(wrong, 0u) << length;
      EXPECT_EQ(target[to - 1], pattern(target_seed, to - 1)) << length;
      EXPECT_EQ(target[to + length], pattern(target_seed, to + length)) << length;
    }
  }
  EXPECT_EQ(peer_->stats().transport, GetParam().transport);
}

TEST_P(TransportConformance, MovesScatteredPieces) {
  constexpr std::uint64_t kBlock = 4099, kCount = 2500;
  std::vector<std::uint64_t> to(kCount);
  std::iota(to.begin(), to.end(), 0);
  std::shuffle(to.begin(), to.end(), std::mt19937(5));
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < kCount; ++i) pieces.push_back(piece(to[i] * kBlock, i * kBlock, kBlock));
  std::shuffle(pieces.begin(), pieces.end(), std::mt19937(6));
  for (const Op op : {Op::kRead, Op::kWrite}) {
    fill(local_.bytes, 1);
    fill(remote_, 2);
    ASSERT_OK(run(*near_, peer_, pieces, op));
    std::size_t wrong = 0;
    for (const Piece& p : pieces) {
      for (std::uint64_t i = 0; i < kBlock; i += 97) {
        const std::byte near = local_.bytes[p.local_offset + i], far = remote_[p.remote_offset + i];
        wrong +=
            near != far || near != (op == Op::kRead ? pattern(2, p.remote_offset + i) : pattern(1, p.local_offset + i));
      }
    }
    EXPECT_EQ(wrong, 0u);
  }
}

// A rail may remember what it sent for a plan, but never what the owner thinks of it.
TEST_P(TransportConformance, MovesAPreparedPlanAgainAndAgain) {
  constexpr std::uint64_t kBlock = 4096, kCount = 900;
  std::span<std::byte> memory;
  const RegionInfo region = own(2 * kBlock * kCount, 3, "reused", &memory);
  ASSERT_OK(peer_->refresh(kPatience));
  std::vector<Piece> pieces;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    pieces.push_back({local_.region.key.id, region.key.id, i * kBlock, (2 * i + 1) * kBlock, kBlock});
  }
  const auto read = near_->prepare(peer_, pieces, Op::kRead), write = near_->prepare(peer_, pieces, Op::kWrite);
  ASSERT_TRUE(read.ok() && write.ok());
  const auto status_of = [&](const std::shared_ptr<const Plan>& plan) {
    auto transfer = near_->submit(plan, {});
    EXPECT_TRUE(transfer.ok() && (*transfer)->wait(kPatience));
    return (*transfer)->status();
  };
  for (std::uint64_t round = 1; round <= 4; ++round) {
    fill(memory, 10 + round);
    ASSERT_OK(status_of(*read));
    for (std::uint64_t i = 0; i < kCount; i += 7) {
      ASSERT_EQ(local_.bytes[i * kBlock + 9], pattern(10 + round, (2 * i + 1) * kBlock + 9)) << round;
    }
    fill(std::span(local_.bytes).first(kBlock * kCount), 20 + round);
    ASSERT_OK(status_of(*write));
    for (std::uint64_t i = 0; i < kCount; i += 7) {
      ASSERT_EQ(memory[(2 * i + 1) * kBlock + 9], pattern(20 + round, i * kBlock + 9)) << round;
      ASSERT_EQ(memory[2 * i * kBlock + 9], pattern(10 + round, 2 * i * kBlock + 9)) << round;
    }
  }
  ASSERT_OK(far_->unregister(region.key, kPatience));
  EXPECT_EQ(status_of(*read).code(), Code::kStale);
  EXPECT_EQ(status_of(*write).code(), Code::kStale);
}

TEST_P(TransportConformance, MergesNeighboursAndAcceptsEmptyPieces) {
  std::vector<Piece> pieces;
  for (std::uint64_t i = 100; i > 0; --i) pieces.push_back(piece(i * 4096, i * 4096, 4096));
  pieces.push_back(piece(0, 0, 0));
  auto plan = near_->prepare(peer_, pieces, Op::kRead);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->runs(), 2u);
  EXPECT_EQ((*plan)->pieces(), 101u);
  EXPECT_EQ((*plan)->bytes(), 100u * 4096);
  ASSERT_OK(run(*near_, peer_, pieces, Op::kRead));
  ASSERT_OK(run(*near_, peer_, {piece(0, 0, 0)}, Op::kRead));
  ASSERT_OK(run(*near_, peer_, {}, Op::kRead));
}

TEST_P(TransportConformance, PiecesMayShareTheirSource) {
  constexpr std::uint64_t kBlock = 100000, kStep = 30011;
  std::vector<Piece> read, write;
  for (std::uint64_t i = 0; i < 8; ++i) {
    read.push_back(piece(i * kBlock, i * kStep, kBlock));
    write.push_back(piece(i * kStep, i * kBlock, kBlock));
  }
  ASSERT_OK(run(*near_, peer_, read, Op::kRead));
  std::size_t wrong = 0;
  for (std::uint64_t i = 0; i < 8 * kBlock; i += 7) {
    wrong += local_.bytes[i] != pattern(2, i / kBlock * kStep + i % kBlock);
  }
  EXPECT_EQ(wrong, 0u);
  fill(local_.bytes, 1);
  ASSERT_OK(run(*near_, peer_, write, Op::kWrite));
  for (std::uint64_t i = 0; i < 8 * kBlock; i += 7) {
    wrong += remote_[i] != pattern(1, i / kBlock * kStep + i % kBlock);
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(TransportConformance, RefusesWhatLiesOutside) {
  struct Range {
    std::uint64_t offset, length;
  };
  for (const Range& range : {Range{kLength, 1}, Range{kLength - 1, 2}, Range{0, kLength + 1}, Range{1ull << 63, 1},
                             Range{UINT64_MAX, 2}, Range{1, UINT64_MAX}, Range{UINT64_MAX, UINT64_MAX}}) {
    for (const Op op : {Op::kRead, Op::kWrite}) {
      EXPECT_EQ(run(*near_, peer_, {piece(range.offset, 0, range.length)}, op).code(), Code::kOutOfRange);
      EXPECT_EQ(run(*near_, peer_, {piece(0, range.offset, range.length)}, op).code(), Code::kOutOfRange);
    }
  }
  EXPECT_OK(run(*near_, peer_, {piece(kLength - 1, kLength - 1, 1)}, Op::kRead));
}

TEST_P(TransportConformance, KeepsOffsetsAbove4GiB) {
  constexpr std::uint64_t kGiB = 1u << 30, kHuge = 5 * kGiB + 3;
  const SparseMemory near(kHuge), far(kHuge);  // never arenas: their pages are made when they are
  ASSERT_TRUE(near.data() && far.data());
  const auto local = near_->register_memory(near.data(), kHuge, "near", 0, MemoryKind::kHost);
  const auto remote = far_->register_memory(far.data(), kHuge, "huge", kRemoteRead | kRemoteWrite, MemoryKind::kHost);
  ASSERT_TRUE(local.ok() && remote.ok());
  ASSERT_OK(peer_->refresh(kPatience));
  constexpr std::uint64_t kBlock = 4096, kShift = 8191;
  std::vector<Piece> there, back;
  for (const std::uint64_t place : {2 * kGiB - 17, 4 * kGiB - 2048, 4 * kGiB + 8192, kHuge - kBlock}) {
    fill({far.data() + place, kBlock}, place);
    there.push_back({local->key.id, remote->key.id, place - kShift, place, kBlock});
    back.push_back({local->key.id, remote->key.id, place - kShift, place - 2 * kShift, kBlock});
  }
  ASSERT_OK(run(*near_, peer_, there, Op::kRead));
  ASSERT_OK(run(*near_, peer_, back, Op::kWrite));
  for (const Piece& p : there) {
    EXPECT_EQ(std::memcmp(near.data() + p.local_offset, far.data() + p.remote_offset, kBlock), 0);
    EXPECT_EQ(std::memcmp(far.data() + p.remote_offset - 2 * kShift, far.data() + p.remote_offset, kBlock), 0);
  }
  EXPECT_OK(near_->unregister(local->key, kPatience));
  EXPECT_OK(far_->unregister(remote->key, kPatience));
}

TEST_P(TransportConformance, RefusesAReplacedRegionAndKeepsTheOthers) {
  std::span<std::byte> memory;
  const RegionInfo doomed = own(65536, 3, "doomed", &memory);
  ASSERT_OK(peer_->refresh(kPatience));
  const std::vector<Piece> pieces{
      piece(0, 0, 4096), {local_.region.key.id, doomed.key.id, 8192, 0, 4096}, piece(16384, 16384, 4096)};
  for (const Op op : {Op::kRead, Op::kWrite}) {
    if (GetParam().own_node && op == Op::kWrite) break;  // prepare() sees the replacement at once
    auto plan = near_->prepare(peer_, pieces, op);
    if (op == Op::kRead) {
      ASSERT_OK(far_->unregister(doomed.key, kPatience));
      std::span<std::byte> replacement;
      EXPECT_EQ(own(65536, 4, "replacement", &replacement).key.id, doomed.key.id);
    }
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    auto transfer = near_->submit(*plan, {});
    ASSERT_TRUE(transfer.ok());
    ASSERT_TRUE((*transfer)->wait(kPatience));
    EXPECT_EQ((*transfer)->status().code(), Code::kStale) << (*transfer)->status().to_string();
    const std::vector<Status> each = (*transfer)->piece_status();
    ASSERT_EQ(each.size(), 3u);
    EXPECT_OK(each[0]);
    EXPECT_EQ(each[1].code(), Code::kStale);
    EXPECT_OK(each[2]);
  }
  ASSERT_OK(peer_->refresh(kPatience));
  EXPECT_OK(run(*near_, peer_, {{local_.region.key.id, doomed.key.id, 0, 0, 4096}}, Op::kRead));
  EXPECT_EQ(local_.bytes[5], pattern(4, 5));
}

TEST_P(TransportConformance, HonoursAccessRights) {
  std::span<std::byte> memory;
  const RegionInfo readable = own(4096, 3, "readable", &memory, kRemoteRead);
  const RegionInfo hidden = own(4096, 3, "writable", &memory, kRemoteWrite);
  ASSERT_OK(peer_->refresh(kPatience));
  const Piece from_readable{local_.region.key.id, readable.key.id, 0, 0, 4096};
  const Piece from_hidden{local_.region.key.id, hidden.key.id, 0, 0, 4096};
  EXPECT_OK(run(*near_, peer_, {from_readable}, Op::kRead));
  EXPECT_EQ(run(*near_, peer_, {from_readable}, Op::kWrite).code(), Code::kPermissionDenied);
  EXPECT_OK(run(*near_, peer_, {from_hidden}, Op::kWrite));
  EXPECT_EQ(run(*near_, peer_, {from_hidden}, Op::kRead).code(), Code::kPermissionDenied);
}

TEST_P(TransportConformance, SettlesOnCancelAndGoesOn) {
  for (int round = 0; round < 5; ++round) {
    auto plan = near_->prepare(peer_, std::vector<Piece>{piece(0, 0, kLength)}, Op::kRead);
    ASSERT_TRUE(plan.ok());
    auto transfer = near_->submit(*plan, {});
    ASSERT_TRUE(transfer.ok());
    std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
    (*transfer)->cancel();
    ASSERT_TRUE((*transfer)->wait(kPatience));
    const Status status = (*transfer)->status();
    EXPECT_TRUE(status.ok() || status.code() == Code::kCancelled) << status.to_string();
    fill(local_.bytes, 9);
    ASSERT_OK(run(*near_, peer_, {piece(0, 0, 70000)}, Op::kRead));
    ASSERT_EQ(local_.bytes[69999], remote_[69999]);
    ASSERT_EQ(local_.bytes[70000], pattern(9, 70000)) << "a cancelled transfer still writes";
  }
}

TEST_P(TransportConformance, KeepsDeadlines) {
  SubmitOptions hurried;
  hurried.timeout = milliseconds(0);
  const Status late = run(*near_, peer_, {piece(0, 0, kLength)}, Op::kRead, hurried);
  EXPECT_EQ(late.code(), Code::kDeadlineExceeded) << late.to_string();
  EXPECT_OK(run(*near_, peer_, {piece(0, 0, 4096)}, Op::kRead));
}

TEST_P(TransportConformance, UnregisterWaitsForPeersAndStopsThem) {
  for (int round = 0; round < 10; ++round) {
    std::span<std::byte> memory;
    const RegionInfo region = own(8u << 20, 3, "short-lived", &memory);
    ASSERT_OK(peer_->refresh(kPatience));
    auto transfer = start(*near_, peer_, {{local_.region.key.id, region.key.id, 0, 0, 8u << 20}}, Op::kWrite);
    ASSERT_TRUE(transfer.ok());
    std::this_thread::sleep_for(std::chrono::microseconds(250 * round));
    ASSERT_OK(far_->unregister(region.key, kPatience));
    if (!GetParam().arena) fill(memory, 5);  // ours again
    ASSERT_TRUE((*transfer)->wait(kPatience));
    const Status status = (*transfer)->status();
    EXPECT_TRUE(status.ok() || status.code() == Code::kStale) << status.to_string();
    if (GetParam().arena) continue;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < memory.size(); i += 61) wrong += memory[i] != pattern(5, i);
    EXPECT_EQ(wrong, 0u) << "a peer wrote after unregister had returned";
  }
}

TEST_P(TransportConformance, CarriesManyTransfersAtOnce) {
  constexpr std::uint64_t kShare = 128u << 10;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 20; ++i) {
        const std::uint64_t offset = (t * 20 + i) * kShare;
        const Op op = i % 2 == 0 ? Op::kRead : Op::kWrite;
        if (!run(*near_, peer_, {piece(offset, offset, kShare)}, op).ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  std::size_t wrong = 0;
  for (std::uint64_t share = 0; share < 80; ++share) {
    for (std::uint64_t i = share * kShare; i < (share + 1) * kShare; i += 509) {
      const std::byte expected = pattern(share % 2 == 0 ? 2 : 1, i);
      wrong += local_.bytes[i] != expected || remote_[i] != expected;
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(TransportConformance, NotifiesAfterTheDataIsVisible) {
  for (std::uint64_t round = 1; round <= 20; ++round) {
    fill(std::span(local_.bytes).first(300000), 100 + round);
    SubmitOptions options;
    options.notify = "round " + std::to_string(round);
    auto transfer = start(*near_, peer_, {piece(0, 0, 300000)}, Op::kWrite, options);
    ASSERT_TRUE(transfer.ok());
    const auto message = far_->next_message(kPatience);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->body, options.notify);
    std::size_t wrong = 0;
    for (std::uint64_t i = 0; i < 300000; i += 31) wrong += remote_[i] != pattern(100 + round, i);
    ASSERT_EQ(wrong, 0u);
    ASSERT_TRUE((*transfer)->wait(kPatience));
    ASSERT_OK((*transfer)->status());
  }
}

TEST_P(TransportConformance, SettlesWhenThePeerCloses) {
  std::vector<std::shared_ptr<Transfer>> transfers;
  constexpr std::uint64_t kShare = kLength / 8;
  for (std::uint64_t i = 0; i < 8; ++i) {
    auto transfer = start(*near_, peer_, {piece(i * kShare, 0, kShare)}, Op::kRead);
    ASSERT_TRUE(transfer.ok());
    transfers.push_back(*transfer);
  }
  far_->close();
  for (const auto& transfer : transfers) {
    ASSERT_TRUE(transfer->wait(milliseconds(10000)));
    const Status status = transfer->status();
    const bool ours = GetParam().own_node && status.code() == Code::kCancelled;
    EXPECT_TRUE(status.ok() || ours || status.code() == Code::kPeerLost || status.code() == Code::kStale)
        << status.to_string();
  }
  ASSERT_FALSE(peer_->status().ok());
  EXPECT_FALSE(start(*near_, peer_, {piece(0, 0, 1)}, Op::kRead).ok());
}

TEST_P(TransportConformance, SettlesWhenThePeerIsKilled) {
  if (GetParam().own_node) GTEST_SKIP() << "a process that is killed has nothing to settle";
  for (int round = 0; round < 3; ++round) {
    ChildProcess child(kLength, GetParam().arena ? "arena" : "foreign", GetParam().transport, GetParam().security);
    ASSERT_TRUE(child.running());
    auto peer = near_->connect(child.endpoint(), child.node_id(), kPatience);
    ASSERT_TRUE(peer.ok()) << peer.status().to_string();
    const Piece all{local_.region.key.id, (*peer)->regions().at(0).key.id, 0, 0, kLength};
    ASSERT_OK(run(*near_, *peer, {all}, Op::kRead));
    ASSERT_EQ(local_.bytes[kLength - 1], pattern(7, kLength - 1));
    std::vector<std::shared_ptr<Transfer>> transfers;
    constexpr std::uint64_t kShare = kLength / 12;  // each has its own memory here: what overlaps has no order
    for (std::uint64_t i = 0; i < 12; ++i) {
      const Piece share{local_.region.key.id, all.remote_region, i * kShare, i * kShare, kShare};
      auto transfer = start(*near_, *peer, {share}, i % 2 == 0 ? Op::kRead : Op::kWrite);
      ASSERT_TRUE(transfer.ok());
      transfers.push_back(*transfer);
    }
    std::this_thread::sleep_for(milliseconds(3 * round));
    child.signal(SIGKILL);
    const auto killed = Clock::now();
    for (const auto& transfer : transfers) {
      ASSERT_TRUE(transfer->wait(milliseconds(10000)));
      const Status status = transfer->status();
      EXPECT_TRUE(status.ok() || status.code() == Code::kPeerLost) << status.to_string();
    }
    EXPECT_LT(Clock::now() - killed, milliseconds(10000));
  }
}

}  // namespace kvferry::testing
