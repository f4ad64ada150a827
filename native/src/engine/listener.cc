#include "engine/listener.h"

#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"
#include "engine/core.h"
#include "engine/inbound.h"

namespace kvferry {
namespace {

constexpr int kBacklog = 256;
constexpr milliseconds kPauseWhenExhausted{100};

Status with_advice(const Status& status, const Endpoint& endpoint) {
  if (endpoint.family() == Endpoint::Family::kUnix || endpoint.port() == 0) return status;
  const std::string port = std::to_string(endpoint.port());
  return {status.code(), status.message() +
                             "; the option bind names it: port 0 takes any free one, \"ss -ltnp 'sport = :" + port +
                             "'\" shows who holds it"};
}

}  // namespace

Result<Listener> Listener::open(const Endpoint& endpoint) {
  Result<UniqueFd> bound_fd = listen_on(endpoint, kBacklog);
  if (!bound_fd.ok()) return with_advice(bound_fd.status(), endpoint);
  UniqueFd fd = std::move(bound_fd).value();
  if (endpoint.family() == Endpoint::Family::kUnix) return Listener(std::move(fd), endpoint);
  KVF_ASSIGN_OR_RETURN(const Endpoint bound, local_endpoint(fd.get()));
  return Listener(std::move(fd), endpoint.with_port(bound.port()));
}

void Listener::run(const std::shared_ptr<EngineCore>& core, const Interrupt& stop) const {
  for (;;) {
    auto accepted = accept_from(fd_.get(), Wait{deadline_in(kLongestWait), &stop});
    if (accepted.ok()) {
      admit(core, std::move(accepted->fd));
      continue;
    }
    if (accepted.status().code() == Code::kCancelled) break;
    log_event(LogLevel::kWarning, "accept_failed",
              {{"endpoint", endpoint_.to_string()}, {"reason", accepted.status()}});
    // Only time brings descriptors back; the interrupt ends the pause early.
    const Status paused = wait_for(-1, 0, Wait{deadline_in(kPauseWhenExhausted), &stop});
    if (paused.code() == Code::kCancelled) break;
  }
  // A closed engine refuses callers instead of letting them wait in the queue of a socket nobody serves.
  shut_down(fd_.get());
}

void Listener::admit(const std::shared_ptr<EngineCore>& core, UniqueFd fd) const {
  core->counters.add(Counters::kConnectionsAccepted);
  auto interrupt = Interrupt::create();
  if (!interrupt.ok()) return core->counters.add_dropped("out_of_descriptors");
  const bool same_host = endpoint_.family() == Endpoint::Family::kUnix;
  const auto connection = std::make_shared<InboundConnection>(std::move(fd), std::move(interrupt).value(), same_host);
  const ConnectionSet::Added added = core->inbound.add(connection);
  if (added == ConnectionSet::Added::kClosed) return;
  if (added == ConnectionSet::Added::kCrowded) core->counters.add_dropped("handshake_crowded");
  const Status started = core->threads.spawn("kvf-serve", [core, connection] { serve_inbound(core, connection); });
  if (started.ok()) return;
  core->inbound.remove(*connection);
  core->counters.add_dropped("out_of_threads");
}

}  // namespace kvferry
