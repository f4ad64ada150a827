#include "engine/transfer.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdint>

#include "base/deadline.h"
#include "engine/lane_pool.h"
#include "engine/peer.h"

namespace kvferry {

TransferImpl::TransferImpl(std::shared_ptr<const PlanImpl> plan, std::vector<RegionTable::Pin> pins, Deadline deadline,
                           std::string notify)
    : plan_(std::move(plan)), pins_(std::move(pins)), deadline_(deadline), notify_(std::move(notify)) {}

bool TransferImpl::wait(milliseconds timeout) {
  if (settled()) return true;
  std::unique_lock lock(mutex_);
  return done_.wait_until(lock, deadline_in(timeout), [&] { return settled(); });
}

void TransferImpl::cancel() {
  if (settled()) return;
  plan_->peer()->lanes().abort(shared_from_this(), {Code::kCancelled, "the transfer was cancelled by its owner"});
}

void TransferImpl::abort_locked(Status why) {
  if (!stop_.exchange(true)) abort_reason_ = std::move(why);
}

void TransferImpl::add_transport_locked(std::string_view name) {
  if (std::find(transports_.begin(), transports_.end(), name) == transports_.end()) transports_.push_back(name);
}

std::vector<Status> TransferImpl::collect_piece_status() const {
  std::vector<Status> out(plan_->pieces());
  auto set = [&](std::uint32_t run, const Status& why) {
    plan_->for_each_piece(run, [&](std::uint32_t piece) {
      if (out[piece].ok()) out[piece] = why;
    });
  };
  for (const auto& [run, why] : failures_) set(run, why);
  const std::vector<PlanSlice>& slices = plan_->slices();
  if (next_slice_ == slices.size()) return out;
  const auto end = static_cast<std::uint32_t>(plan_->run_list().size());
  for (std::uint32_t run = slices[next_slice_].first_run; run < end; ++run) set(run, abort_reason_);
  return out;
}

Status TransferImpl::summary(std::size_t failed_pieces) const {
  if (failed_pieces == 0) return {};
  const Status& first = failures_.empty() || !abort_reason_.ok() ? abort_reason_ : failures_.front().second;
  const Status why = warning_.empty() ? first : Status(first.code(), first.message() + "; " + warning_);
  return why.with_context(std::to_string(failed_pieces) + " of " + std::to_string(plan_->pieces()) + " pieces failed");
}

TransferImpl::Outcome TransferImpl::conclude(const Status& notify_status) {
  std::size_t failed = 0;
  if (!failures_.empty() || next_slice_ < plan_->slices().size()) {
    const std::vector<Status> pieces = collect_piece_status();
    failed = static_cast<std::size_t>(
        std::count_if(pieces.begin(), pieces.end(), [](const Status& status) { return !status.ok(); }));
  }
  pins_.clear();  // the owner may unregister as soon as the transfer is settled
  const std::lock_guard lock(mutex_);
  status_ = summary(failed);
  if (status_.ok()) status_ = notify_status;
  for (std::string_view name : transports_) {
    if (!transport_text_.empty()) transport_text_ += '+';
    transport_text_ += name;
  }
  ended_ = Clock::now();
  return {status_, failed};
}

void TransferImpl::publish() {
  const std::lock_guard lock(mutex_);
  settled_.store(true, std::memory_order_release);
  if (event_fd_.valid()) eventfd_write(event_fd_.get(), 1);
  done_.notify_all();
}

Status TransferImpl::status() const {
  if (!settled()) return {Code::kUnavailable, "the transfer is still under way"};
  return status_;
}

std::vector<Status> TransferImpl::piece_status() const {
  if (settled()) return collect_piece_status();
  return std::vector<Status>(plan_->pieces(), status());
}

std::string TransferImpl::transport() const {
  std::lock_guard lock(mutex_);
  return transport_text_;
}

double TransferImpl::seconds() const {
  const Clock::time_point end = settled() ? ended_ : Clock::now();
  return std::chrono::duration<double>(end - started_).count();
}

int TransferImpl::event_fd() {
  std::lock_guard lock(mutex_);
  if (!event_fd_.valid()) {
    event_fd_.reset(::eventfd(settled() ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
  return event_fd_.get();
}

}  // namespace kvferry
