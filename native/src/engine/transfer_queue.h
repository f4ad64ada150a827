// Which slice of one peer's transfers is moved next. No lock, no clock: the pool's mutex guards it.
//
// Between the priority classes: self-clocked fair queueing by bytes, with the weights of `Priority`. Within a class:
// what is left of broken slices first, then one slice of each transfer in turn, so that a small transfer waits for
// slices, not for the big transfers before it. The spare lane takes small transfers only, and not those of low
// priority: what it takes counts against no share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "engine/slice.h"

namespace kvferry {

class TransferQueue {
 public:
  bool empty() const { return size_ == 0; }
  bool holds_only(const TransferImpl* transfer) const;
  std::size_t queued_slices() const;

  void push(std::shared_ptr<TransferImpl> transfer);  // not exhausted
  void push_rest(Slice slice);
  bool take(Slice* slice);            // false: empty
  bool take_for_spare(Slice* slice);  // a transfer that the spare lane may move; false: there is none
  bool has_for_spare() const;
  // Forgets the transfer; calls dropped(run) for each run of its rests and rest_gone() for each rest.
  template <typename Dropped, typename RestGone>
  void remove(const TransferImpl* transfer, const Dropped& dropped, const RestGone& rest_gone);

 private:
  struct Entry {
    std::uint64_t turn = 0;  // the lower comes first, whichever of the two queues it is in
    std::shared_ptr<TransferImpl> transfer;
  };
  struct Class {
    std::deque<Slice> rests;
    std::deque<Entry> small, large;
    std::uint64_t end = 0;  // of its last slice, in weighted bytes, as if the class had its share of a rail for itself
    std::uint64_t next_end() const;  // of its next slice: the class where that is least is served. Not empty.
    bool empty() const { return rests.empty() && small.empty() && large.empty(); }
    std::deque<Entry>& queue_of(const TransferImpl& transfer) { return transfer.plan().small() ? small : large; }
    const std::deque<Entry>& next() const;  // the queue whose turn it is; not if both are empty
  };
  Class& activate(Priority priority);
  void push(Class& target, std::shared_ptr<TransferImpl> transfer);
  void take_from(Class& from, Slice* slice);

  std::array<Class, 3> classes_;  // by Priority
  std::uint64_t now_ = 0;         // `end` of the slice that was taken last
  std::uint64_t last_turn_ = 0;
  std::size_t size_ = 0;  // rests and transfers of all classes
};

template <typename Dropped, typename RestGone>
void TransferQueue::remove(const TransferImpl* transfer, const Dropped& dropped, const RestGone& rest_gone) {
  Class& from = classes_[static_cast<std::size_t>(transfer->priority())];
  size_ -=
      std::erase_if(from.queue_of(*transfer), [&](const Entry& other) { return other.transfer.get() == transfer; });
  size_ -= std::erase_if(from.rests, [&](const Slice& rest) {
    if (rest.transfer.get() != transfer) return false;
    for (const std::uint32_t run : rest.rest_run) dropped(run);
    rest_gone();
    return true;
  });
}

}  // namespace kvferry
