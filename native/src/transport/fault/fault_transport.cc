#include "transport/fault/fault_transport.h"

#include <algorithm>
#include <thread>

#include "base/deadline.h"

namespace kvferry {

class FaultRail final : public Rail {
 public:
  FaultRail(std::unique_ptr<Rail> inner, FaultTransport& owner) : inner_(std::move(inner)), owner_(owner) {}

  std::string_view transport() const override { return inner_->transport(); }
  Status execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                 const std::atomic<bool>& cancelled) override;
  bool asks_gate() const override { return inner_->asks_gate(); }
  bool immediate() const override { return inner_->immediate() && !owner_.waits(); }
  void interrupt() override {
    interrupted_ = true;
    inner_->interrupt();
  }

 private:
  Status pause(milliseconds time, Deadline deadline, const std::atomic<bool>& cancelled) const;
  Status cut_short(const Batch& batch, std::span<Status> results, Deadline deadline,
                   const std::atomic<bool>& cancelled);
  Status late(const Batch& batch, std::span<Status> results, milliseconds time);
  Status corrupt(const Batch& batch, std::span<Status> results, Deadline deadline, const std::atomic<bool>& cancelled);

  const std::unique_ptr<Rail> inner_;
  FaultTransport& owner_;
  std::atomic<bool> interrupted_{false};
};

namespace {

constexpr milliseconds kStep{2};

Status broken(std::span<Status> results, Status why) {
  for (Status& result : results) {
    if (result.ok()) result = why;
  }
  return why;
}

}  // namespace

Status FaultRail::pause(milliseconds time, Deadline deadline, const std::atomic<bool>& cancelled) const {
  const Deadline end = deadline_in(time);
  while (!expired(end)) {
    if (cancelled || interrupted_) return {Code::kCancelled, "fault: interrupted"};
    if (expired(deadline)) return {Code::kDeadlineExceeded, "fault: nothing moved in time"};
    std::this_thread::sleep_for(kStep);
  }
  return {};
}

Status FaultRail::cut_short(const Batch& batch, std::span<Status> results, Deadline deadline,
                            const std::atomic<bool>& cancelled) {
  const std::size_t half = batch.runs.size() / 2;
  Status status;
  if (half > 0)
    status =
        inner_->execute({batch.op, batch.runs.first(half), 0, batch.gate}, results.first(half), deadline, cancelled);
  if (!status.ok()) return broken(results, status);
  return broken(results.subspan(half), {Code::kPeerLost, "fault: the rail broke half way"});
}

Status FaultRail::corrupt(const Batch& batch, std::span<Status> results, Deadline deadline,
                          const std::atomic<bool>& cancelled) {
  std::byte* const victim = batch.runs.front().local;
  if (batch.op == Op::kRead) {
    const Status status = inner_->execute(batch, results, deadline, cancelled);
    const GatePass pass(batch.gate);
    if (pass.inside()) *victim = ~*victim;
    return status;
  }
  std::vector<RunOp> altered(batch.runs.begin(), batch.runs.end());
  std::vector<std::byte> wrong(victim, victim + batch.runs.front().length);
  wrong.front() = ~wrong.front();
  altered.front().local = wrong.data();
  return inner_->execute({batch.op, altered, 0, batch.gate}, results, deadline, cancelled);
}

Status FaultRail::late(const Batch& batch, std::span<Status> results, milliseconds time) {
  std::this_thread::sleep_for(time);
  const std::atomic<bool> never{false};
  return inner_->execute(batch, results, deadline_in(kLongestWait), never);
}

Status FaultRail::execute(const Batch& batch, std::span<Status> results, Deadline deadline,
                          const std::atomic<bool>& cancelled) {
  interrupted_ = false;
  const FaultRule* const rule = owner_.rule_for(++owner_.executions_, false);
  if (rule == nullptr || batch.runs.empty()) return inner_->execute(batch, results, deadline, cancelled);
  switch (rule->action) {
    case FaultAction::kHang:
      return broken(results, pause(kLongestWait, deadline, cancelled));
    case FaultAction::kStuck:
      std::this_thread::sleep_for(rule->delay);
      return broken(results, {Code::kDeadlineExceeded, "fault: nothing moved for long"});
    case FaultAction::kLate:
      return late(batch, results, rule->delay);
    case FaultAction::kCut:
      return broken(results, {Code::kPeerLost, "fault: the rail broke"});
    case FaultAction::kShort:
      return cut_short(batch, results, deadline, cancelled);
    case FaultAction::kCorrupt:
      return corrupt(batch, results, deadline, cancelled);
    case FaultAction::kDelay:
    case FaultAction::kRefuse:
      break;
  }
  const Status paused = pause(rule->delay, deadline, cancelled);
  if (!paused.ok()) return broken(results, paused);
  return inner_->execute(batch, results, deadline, cancelled);
}

const FaultRule* FaultTransport::rule_for(std::uint64_t call, bool opening) const {
  const auto rule = std::find_if(rules_.rbegin(), rules_.rend(), [&](const FaultRule& candidate) {
    return (candidate.action == FaultAction::kRefuse) == opening && candidate.applies(name(), call);
  });
  return rule == rules_.rend() ? nullptr : &*rule;
}

bool FaultTransport::waits() const {
  return std::any_of(rules_.begin(), rules_.end(), [](const FaultRule& rule) {
    return rule.action == FaultAction::kDelay || rule.action == FaultAction::kHang ||
           rule.action == FaultAction::kStuck || rule.action == FaultAction::kLate;
  });
}

Result<std::unique_ptr<Rail>> FaultTransport::open_rail(const PeerContext& peer, Deadline deadline) {
  if (rule_for(++openings_, true) != nullptr) return {Code::kUnavailable, "fault: opening a rail was refused"};
  auto rail = inner_->open_rail(peer, deadline);
  if (!rail.ok()) return rail;
  return std::unique_ptr<Rail>(std::make_unique<FaultRail>(std::move(rail).value(), *this));
}

}  // namespace kvferry
