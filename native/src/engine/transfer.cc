#include "engine/transfer.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdint>

#include "base/deadline.h"
#include "engine/lane_pool.h"
#include "engine/peer.h"

namespace kvferry {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

bool TransferImpl::wait(milliseconds timeout) {
  if (settled()) return true;
  std::unique_lock lock(mutex_);
  sleepers_ = true;
  if (!done_.wait_until(lock, deadline_in(timeout), [&] { return settled(); })) return false;
  if (waking_.count() == 0) waking_ = Clock::now() - ended_;
  return true;
}

void TransferImpl::cancel() {
  if (settled() || fork_count() != forks_) return;  // a child's would wake the parent's rails, if it got their locks
  plan().peer()->lanes().abort(shared_from_this(), {Code::kCancelled, "the transfer was cancelled by its owner"});
}

bool TransferImpl::abort_locked(Status why) {
  if (stop_.exchange(true)) return false;
  abort_reason_ = std::move(why);
  return true;
}

void TransferImpl::cut_locked() {
  cut_ = true;
  pending_slices_ = 0;
}

void TransferImpl::taken_locked(std::string_view transport, Clock::time_point now) {
  if (taken_ == Clock::time_point{}) taken_ = now;
  if (transport == last_transport_) return;
  last_transport_ = transport;
  if (transports_.find(transport) != std::string::npos) return;
  if (!transports_.empty()) transports_ += '+';
  transports_ += transport;
}

std::vector<Status> TransferImpl::collect_piece_status() const {
  std::vector<Status> out(plan().pieces());
  auto set = [&](std::uint32_t run, const Status& why) {
    plan().for_each_piece(run, [&](std::uint32_t piece) {
      if (out[piece].ok()) out[piece] = why;
    });
  };
  for (const auto& [run, why] : failures_) set(run, why);
  const std::vector<PlanSlice>& slices = plan().slices();
  if (next_slice_ == slices.size()) return out;
  const auto end = static_cast<std::uint32_t>(plan().run_list().size());
  for (std::uint32_t run = slices[next_slice_].first_run; run < end; ++run) set(run, abort_reason_);
  return out;
}

Status TransferImpl::summary(std::size_t failed_pieces) const {
  if (failed_pieces == 0) return {};
  const Status& first = failures_.empty() || !abort_reason_.ok() ? abort_reason_ : failures_.front().second;
  const Status why = warning_.empty() ? first : Status(first.code(), first.message() + "; " + warning_);
  return why.with_context(std::to_string(failed_pieces) + " of " + std::to_string(plan().pieces()) + " pieces failed");
}

TransferImpl::Outcome TransferImpl::conclude(const Status& notify_status) {
  std::size_t failed = 0;
  if (!failures_.empty() || next_slice_ < plan().slices().size()) {
    const std::vector<Status> pieces = collect_piece_status();
    failed = static_cast<std::size_t>(
        std::count_if(pieces.begin(), pieces.end(), [](const Status& status) { return !status.ok(); }));
  }
  order_.pins.clear();  // the owner may unregister as soon as the transfer is settled
  const std::lock_guard lock(mutex_);
  status_ = summary(failed);
  if (status_.ok()) status_ = notify_status;
  ended_ = Clock::now();
  return {status_, failed, last_transport_, seconds_between(order_.started, ended_)};
}

void TransferImpl::publish() {
  const std::lock_guard lock(mutex_);
  settled_.store(true, std::memory_order_release);
  if (event_fd_.valid()) eventfd_write(event_fd_.get(), 1);
  if (sleepers_) done_.notify_all();
}

Status TransferImpl::status() const {
  if (!settled()) return {Code::kUnavailable, "the transfer is still under way"};
  return status_;
}

std::vector<Status> TransferImpl::piece_status() const {
  if (settled()) return collect_piece_status();
  return std::vector<Status>(plan().pieces(), status());
}

std::string TransferImpl::transport() const { return settled() ? transports_ : std::string(); }

double TransferImpl::seconds() const { return seconds_between(order_.started, settled() ? ended_ : Clock::now()); }

TransferStages TransferImpl::stages() const {
  TransferStages out;
  if (!settled()) return out;
  // A transfer that was ended before a rail took it spent its time in the queue.
  const Clock::time_point taken = taken_ == Clock::time_point{} ? moved_ : taken_;
  out.submit_s = seconds_between(order_.started, queued_);
  out.queue_s = seconds_between(queued_, taken);
  out.move_s = seconds_between(taken, moved_);
  out.settle_s = seconds_between(moved_, ended_);
  const std::lock_guard lock(mutex_);
  out.wake_s = std::chrono::duration<double>(waking_).count();
  return out;
}

int TransferImpl::event_fd() {
  std::lock_guard lock(mutex_);
  if (!event_fd_.valid()) {
    event_fd_.reset(::eventfd(settled() ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  return event_fd_.get();
}

}  // namespace kvferry
