#include "engine/transfer_queue.h"

#include <algorithm>
#include <span>
#include <utility>

namespace kvferry {
namespace {

constexpr std::array<std::uint64_t, 3> kShares{16, 4, 1};  // by Priority
constexpr std::size_t kSpareClasses = 2;                   // high and normal
constexpr std::uint64_t kSliceOverheadBytes = 64u << 10;   // what a slice costs beside its bytes

std::uint64_t weighted(std::uint64_t bytes, const TransferImpl& transfer) {
  return (bytes + kSliceOverheadBytes) * (kShares.front() / kShares[static_cast<std::size_t>(transfer.priority())]);
}

}  // namespace

bool TransferQueue::holds_only(const TransferImpl* transfer) const {
  if (size_ == 0) return true;
  const Class& own = classes_[static_cast<std::size_t>(transfer->priority())];
  return size_ == 1 && own.rests.empty() && !own.empty() && own.next().front().transfer.get() == transfer;
}

std::size_t TransferQueue::queued_slices() const {
  std::size_t count = 0;
  for (const Class& one : classes_) {
    count += one.rests.size();
    count += one.small.size();
    for (const Entry& entry : one.large) count += entry.transfer->untaken_slices_locked();
  }
  return count;
}

const std::deque<TransferQueue::Entry>& TransferQueue::Class::next() const {
  if (small.empty() || large.empty()) return small.empty() ? large : small;
  return small.front().turn < large.front().turn ? small : large;
}

std::uint64_t TransferQueue::Class::next_end() const {
  if (rests.empty()) {
    const TransferImpl& transfer = *next().front().transfer;
    return end + weighted(transfer.next_slice_locked().bytes, transfer);
  }
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
  Class& target = activate(transfer->priority());
  push(target, std::move(transfer));
}

void TransferQueue::push(Class& target, std::shared_ptr<TransferImpl> transfer) {
  std::deque<Entry>& queue = target.queue_of(*transfer);
  queue.push_back({++last_turn_, std::move(transfer)});
}

void TransferQueue::push_rest(Slice slice) { activate(slice.transfer->priority()).rests.push_back(std::move(slice)); }

void TransferQueue::take_from(Class& from, Slice* slice) {
  --size_;
  if (!from.rests.empty()) {
    *slice = std::move(from.rests.front());
    from.rests.pop_front();
    return;
  }
  std::deque<Entry>& queue = from.queue_of(*from.next().front().transfer);
  slice->take(std::move(queue.front().transfer));
  queue.pop_front();
  if (slice->transfer->exhausted_locked()) return;
  push(from, slice->transfer);
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

bool TransferQueue::has_for_spare() const {
  const auto fit = std::span(classes_).first<kSpareClasses>();
  return std::any_of(fit.begin(), fit.end(), [](const Class& one) { return !one.small.empty(); });
}

bool TransferQueue::take_for_spare(Slice* slice) {
  for (Class& one : std::span(classes_).first<kSpareClasses>()) {
    if (one.small.empty()) continue;
    slice->take(std::move(one.small.front().transfer));
    one.small.pop_front();
    --size_;
    return true;
  }
  return false;
}

}  // namespace kvferry
