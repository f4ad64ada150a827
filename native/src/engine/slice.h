// A part of a transfer that one rail moves in one go. Reused by its lane, so that the data path does not allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/transfer.h"
#include "transport/transport.h"

namespace kvferry {

struct Slice {
  std::shared_ptr<TransferImpl> transfer;
  Batch batch;                          // runs of the plan, or `rest`
  std::uint32_t first_run = 0;          // index of batch.runs[0] in the plan, unless it is a rest
  std::vector<RunOp> rest;              // after a rail broke: the runs that were not moved
  std::vector<std::uint32_t> rest_run;  // their indices in the plan
  std::vector<Status> results;          // one per run
  std::uint32_t attempts = 0;

  Slice() = default;
  Slice(Slice&&) = default;
  Slice& operator=(Slice&&) = default;

  void take(std::shared_ptr<TransferImpl> from);  // the next slice of its plan
  void clear();
  std::uint32_t run_at(std::size_t place) const {
    return rest_run.empty() ? first_run + static_cast<std::uint32_t>(place) : rest_run[place];
  }
  std::uint64_t moved_bytes() const;  // by the results
  // Becomes the rest that `keep(place)` says true of; false if that is none.
  template <typename Keep>
  bool reduce(const Keep& keep);
};

template <typename Keep>
bool Slice::reduce(const Keep& keep) {
  std::vector<RunOp> runs;
  std::vector<std::uint32_t> indices;
  for (std::size_t place = 0; place < batch.runs.size(); ++place) {
    if (!keep(place)) continue;
    runs.push_back(batch.runs[place]);
    indices.push_back(run_at(place));
  }
  if (runs.empty()) return false;
  rest = std::move(runs);
  rest_run = std::move(indices);
  batch = {batch.op, rest, 0, batch.gate};
  return true;
}

}  // namespace kvferry
