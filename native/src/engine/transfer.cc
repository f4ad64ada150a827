#include "engine/transfer.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdint>

#include "base/deadline.h"
#include "engine/lane_pool.h"
#include "engine/peer.h"

namespace kvferry {

void Slice::clear() {
  transfer.reset();
  ops.clear();
  runs.clear();
  results.clear();
  attempts = 0;
  bytes = 0;
}

void Slice::add(std::uint32_t run, const RunOp& op) {
  ops.push_back(op);
  runs.push_back(run);
  bytes += op.length;
}

TransferImpl::TransferImpl(std::shared_ptr<const PlanImpl> plan, std::vector<RegionTable::Pin> pins, Deadline deadline,
                           std::string notify)
    : plan_(std::move(plan)),
      pins_(std::move(pins)),
      deadline_(deadline),
      notify_(std::move(notify)),
      uncut_bytes_(plan_->bytes()) {}

bool TransferImpl::wait(milliseconds timeout) {
  if (settled()) return true;
  std::unique_lock lock(mutex_);
  return done_.wait_until(lock, deadline_in(timeout), [&] { return settled(); });
}

void TransferImpl::cancel() {
  if (settled()) return;
  plan_->peer()->lanes().abort(shared_from_this(), {Code::kCancelled, "the transfer was cancelled by its owner"});
}

void TransferImpl::cut_locked(std::uint64_t max_bytes, std::size_t max_runs, Slice* slice) {
  const std::vector<PlanRun>& runs = plan_->run_list();
  while (next_run_ < runs.size() && slice->ops.size() < max_runs && slice->bytes < max_bytes) {
    const PlanRun& run = runs[next_run_];
    const std::uint64_t left = run.length - run_offset_;
    const std::uint64_t take = std::min(left, max_bytes - slice->bytes);
    if (take > 0) {
      slice->add(static_cast<std::uint32_t>(next_run_), {pins_[run.local_index].data() + run.local_offset + run_offset_,
                                                         run.remote, run.remote_offset + run_offset_, take});
    }
    uncut_bytes_ -= take;
    run_offset_ += take;
    if (run_offset_ == run.length) {
      ++next_run_;
      run_offset_ = 0;
    }
  }
}

void TransferImpl::abort_locked(Status why) {
  if (!stop_.exchange(true)) abort_reason_ = std::move(why);
}

void TransferImpl::add_transport_locked(std::string_view name) {
  if (std::find(transports_.begin(), transports_.end(), name) == transports_.end()) transports_.push_back(name);
}

std::size_t TransferImpl::count_failed_pieces() const {
  const std::vector<PlanRun>& runs = plan_->run_list();
  std::vector<std::uint32_t> bad;
  for (const auto& failure : failures_) bad.push_back(failure.first);
  std::sort(bad.begin(), bad.end());
  bad.erase(std::unique(bad.begin(), bad.end()), bad.end());
  std::size_t count = 0;
  for (std::uint32_t run : bad) count += runs[run].piece_count;
  for (std::size_t run = next_run_; run < runs.size(); ++run) {
    if (!std::binary_search(bad.begin(), bad.end(), static_cast<std::uint32_t>(run))) count += runs[run].piece_count;
  }
  return count;
}

Status TransferImpl::summary(std::size_t failed_pieces) const {
  if (failed_pieces == 0) return {};
  const Status& first = failures_.empty() || !abort_reason_.ok() ? abort_reason_ : failures_.front().second;
  return first.with_context(std::to_string(failed_pieces) + " of " + std::to_string(plan_->pieces()) +
                            " pieces failed");
}

TransferImpl::Outcome TransferImpl::conclude(const Status& notify_status) {
  const std::size_t failed = count_failed_pieces();
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
  std::vector<Status> out(plan_->pieces());
  if (!settled()) {
    std::fill(out.begin(), out.end(), status());
    return out;
  }
  const std::vector<PlanRun>& runs = plan_->run_list();
  auto set = [&](const PlanRun& run, const Status& why) {
    for (std::uint32_t i = 0; i < run.piece_count; ++i) {
      Status& slot = out[plan_->order()[run.first_piece + i]];
      if (slot.ok()) slot = why;
    }
  };
  for (const auto& [run, why] : failures_) set(runs[run], why);
  for (std::size_t run = next_run_; run < runs.size(); ++run) set(runs[run], abort_reason_);
  return out;
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
