// What a test wants to go wrong, as text: rules "transport:action[=value][@first][xcount]", separated by ";".
//
//   tcp:cut@3x1        the third execute() on tcp breaks the rail before anything moved, once
//   shm:hang           every execute() on shm does nothing until its deadline
//   *:delay=20         every execute() starts 20 ms late
//   file:stuck=7000    every execute() does nothing for 7 s, whatever its deadline and whoever interrupts it
//   tcp:late=7000      every execute() does nothing for 7 s, then moves all, whoever gave up
//   tcp:short          moves the first half of the runs, then breaks the rail
//   tcp:corrupt@2      from the second on, one byte of what was moved is wrong, and nobody is told
//   shm:refuse         open_rail() fails; @ and x count openings
//
// Calls are counted per transport and over the whole engine, from 1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"
#include "kvferry/types.h"

namespace kvferry {

enum class FaultAction : std::uint8_t { kDelay, kHang, kStuck, kLate, kCut, kShort, kCorrupt, kRefuse };

struct FaultRule {
  std::string transport;  // "*": any
  FaultAction action = FaultAction::kCut;
  milliseconds delay{0};
  std::uint64_t first = 1;
  std::uint64_t count = UINT64_MAX;

  bool applies(std::string_view name, std::uint64_t call) const {
    return (transport == "*" || transport == name) && call >= first && call - first < count;
  }
  bool operator==(const FaultRule&) const = default;
};

// kInvalidArgument names the rule that it does not understand.
Result<std::vector<FaultRule>> parse_fault_plan(std::string_view text);

}  // namespace kvferry
