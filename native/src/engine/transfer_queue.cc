#include "engine/transfer_queue.h"

#include <algorithm>
#include <utility>

namespace kvferry {
namespace {

constexpr std::array<std::uint64_t, 3> kShares{16, 4, 1};  // by Priority
constexpr std::uint64_t kSliceOverheadBytes = 64u << 10;   // what a slice costs beside its bytes

std::uint64_t weighted(std::uint64_t bytes, const TransferImpl& transfer) {
  return (bytes + kSliceOverheadBytes) * (kShares.front() / kShares[static_cast<std::size_t>(transfer.priority())]);
}

}  // namespace

bool TransferQueue::holds_only(const TransferImpl* transfer) const {
  if (size_ == 0) return true;
  const Class& own = classes_[static_cast<std::size_t>(transfer->priority())];
  return size_ == 1 && own.transfers.size() == 1 && own.transfers.front().get() == transfer;
}

std::size_t TransferQueue::queued_slices() const {
  std::size_t count = 0;
  for (const Class& one : classes_) {
    count += one.rests.size();
    for (const auto& transfer : one.transfers) count += transfer->untaken_slices_locked();
  }
  return count;
}

std::uint64_t TransferQueue::Class::next_end() const {
  if (rests.empty()) return end + weighted(transfers.front()->next_slice_locked().bytes, *transfers.front());
  std::uint64_t bytes = 0;
  for (const RunOp& run : rests.front().batch.runs) bytes += run.length;
  return end + weighted(bytes, *rests.front().transfer);
}

// A class that had nothing to do earns nothing for it.
TransferQueue::Class& TransferQueue::activate(Priority priority) {
  Class& target = classes_[static_cast<std::size_t>(priority)];
  if (target.empty()) target.end = std::max(target.end, now_);
  ++size_;
  return target;
}

void TransferQueue::push(std::shared_ptr<TransferImpl> transfer) {
  activate(transfer->priority()).transfers.push_back(std::move(transfer));
}

void TransferQueue::push_rest(Slice slice) { activate(slice.transfer->priority()).rests.push_back(std::move(slice)); }

void TransferQueue::take_from(Class& from, Slice* slice) {
  --size_;
  if (!from.rests.empty()) {
    *slice = std::move(from.rests.front());
    from.rests.pop_front();
    return;
  }
  slice->take(std::move(from.transfers.front()));
  from.transfers.pop_front();
  if (slice->transfer->exhausted_locked()) return;
  from.transfers.push_back(slice->transfer);
  ++size_;
}

bool TransferQueue::take(Slice* slice) {
  Class* next = nullptr;
  for (Class& candidate : classes_) {
    if (!candidate.empty() && (next == nullptr || candidate.next_end() < next->next_end())) next = &candidate;
  }
  if (next == nullptr) return false;
  now_ = next->end = next->next_end();
  take_from(*next, slice);
  return true;
}

}  // namespace kvferry
