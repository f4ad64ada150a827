// How often this process is the child of a fork() that was made after the library's first use: another number means
// another process. Costs no system call, unlike getpid().
#pragma once

#include <cstdint>

namespace kvferry {

std::uint64_t fork_count();

}  // namespace kvferry
