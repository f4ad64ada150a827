#include "memory/copy_lanes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "base/deadline.h"

namespace kvferry {
namespace {

// One cache line each, so that copying threads do not disturb each other.
struct alignas(64) Lane {
  std::atomic<std::uint64_t> count;
};
constexpr std::uint64_t kLanesBytes = sizeof(Lane) * kMaxAttachLanes;

Lane* lanes_of(const Arena& memory) { return reinterpret_cast<Lane*>(memory.data()); }

}  // namespace

Result<CopyLanes> CopyLanes::create() {
  KVF_ASSIGN_OR_RETURN(Arena memory, Arena::create(kLanesBytes, "copy-lanes"));
  return CopyLanes(std::move(memory));
}

Result<CopyLanes> CopyLanes::map(UniqueFd fd) {
  auto mapped = Arena::map(std::move(fd), kLanesBytes, true);
  if (!mapped.ok()) return mapped.status().with_context("copy lanes");
  return CopyLanes(std::move(mapped).value());
}

void CopyLanes::begin(std::uint32_t lane) {
  lanes_of(memory_)[lane].count.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the copy comes after it
}

void CopyLanes::end(std::uint32_t lane) { lanes_of(memory_)[lane].count.fetch_add(1, std::memory_order_seq_cst); }

Status CopyLanes::quiesce(Deadline deadline, const std::function<bool()>& hung_up) const {
  std::array<std::uint64_t, kMaxAttachLanes> at_call{};
  for (std::size_t i = 0; i < at_call.size(); ++i)
    at_call[i] = lanes_of(memory_)[i].count.load(std::memory_order_seq_cst);

  const auto is_busy = [&](std::size_t i) {
    return (at_call[i] & 1) != 0 && lanes_of(memory_)[i].count.load(std::memory_order_seq_cst) == at_call[i];
  };
  milliseconds pause(1);
  for (std::size_t i = 0; i < at_call.size();) {
    if (!is_busy(i)) {
      ++i;
      continue;
    }
    if (hung_up && hung_up()) return {};
    if (expired(deadline)) {
      return {Code::kDeadlineExceeded, "a peer of this host is still copying in lane " + std::to_string(i)};
    }
    std::this_thread::sleep_for(std::min(pause, remaining(deadline)));
    pause = std::min(pause * 2, milliseconds(20));
  }
  return {};
}

}  // namespace kvferry
