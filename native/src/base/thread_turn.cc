#include "base/thread_turn.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace kvferry {
namespace {

constexpr std::uint64_t kLongTurnNs = 20'000'000;  // the kernel's own choice is 0.7 to 2.8 ms

// The kernel's sched_attr in its first version; headers that declare it are at odds with those of some C libraries.
struct Attributes {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime, deadline, period;
};

}  // namespace

void take_long_turns(bool wanted) {
  thread_local bool taken = false;
  if (wanted == taken) return;
  taken = wanted;
  Attributes attributes{};
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = wanted ? kLongTurnNs : 0;          // 0: the kernel's own choice
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);  // no loss where it is refused: then turns stay as they are
}

}  // namespace kvferry
