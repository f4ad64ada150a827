#include "engine/slice.h"

#include <utility>

namespace kvferry {

void Slice::take(std::shared_ptr<TransferImpl> from) {
  clear();
  transfer = std::move(from);
  const PlanImpl& plan = transfer->plan();
  const PlanSlice& next = transfer->take_slice_locked();
  batch = {plan.op(), plan.runs_of(next), next.list, &transfer->gate()};
  first_run = next.first_run;
}

void Slice::clear() {
  transfer.reset();
  batch = {};
  rest.clear();
  rest_run.clear();
  results.clear();
  attempts = 0;
}

std::uint64_t Slice::moved_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t place = 0; place < batch.runs.size(); ++place) {
    if (results[place].ok()) bytes += batch.runs[place].length;
  }
  return bytes;
}

}  // namespace kvferry
