#include "store/rpc.h"

#include <algorithm>

#include "base/deadline.h"
#include "base/log.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kAnswerTimeout{5000};  // for socket space, by a service thread
constexpr milliseconds kLook{100};            // between two looks at whether who must answer is stopped

}  // namespace

std::string seconds_since(Clock::time_point begin) {
  const auto tenths = std::chrono::round<milliseconds>(Clock::now() - begin).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

struct RpcEndpoint::Waiting {
  RpcEndpoint* endpoint = nullptr;
  std::uint64_t id = 0;
  std::uint64_t peer = 0;
  Type type = Type::kPing;
  Clock::time_point begun = Clock::now();
  Deadline deadline;

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;  // guarded by mutex, as is what follows
  Status status;
  Bytes answer;

  ~Waiting() {
    endpoint->forget(id);
    if (done && status.ok() && !answer.empty()) endpoint->unclaimed(peer, type, answer);  // it came too late
  }
  void settle(Status why, Bytes body) {
    {
      const std::lock_guard lock(mutex);
      if (done) return;
      done = true;
      status = std::move(why);
      answer = std::move(body);
    }
    changed.notify_all();
  }
};

Result<std::unique_ptr<RpcEndpoint>> RpcEndpoint::create(EngineOptions options, Handler* handler,
                                                         const Pools& threads) {
  std::unique_ptr<RpcEndpoint> endpoint(new RpcEndpoint());
  endpoint->handler_ = handler;
  KVF_RETURN_IF_ERROR(endpoint->start_threads(threads));
  EngineHooks hooks;
  hooks.on_message = [self = endpoint.get()](std::uint64_t peer, Bytes& body) { return self->take(peer, body); };
  hooks.callers_read = handler == nullptr || !handler->serves();
  hooks.on_lost = [self = endpoint.get()](std::uint64_t peer, const Status& why) { self->lose(peer, why); };
  KVF_ASSIGN_OR_RETURN(endpoint->engine_, HookedEngine::create(std::move(options), std::move(hooks)));
  endpoint->live_ = endpoint->engine_.get();
  return endpoint;
}

Status RpcEndpoint::start_threads(const Pools& threads) {
  for (std::size_t i = 0; i < threads.size() && i < kMaxPools; ++i) {
    Pool& pool = pools_[i];
    pool.has_threads = threads[i] > 0;
    for (std::size_t n = 0; n < threads[i]; ++n) {
      KVF_RETURN_IF_ERROR(threads_.spawn("kvs-serve-" + std::to_string(i), [this, &pool] { serve(pool); }));
    }
  }
  return {};
}

void RpcEndpoint::close() {
  for (Pool& pool : pools_) {
    {
      const std::lock_guard lock(pool.mutex);
      pool.closed = true;
      pool.jobs.clear();
    }
    pool.changed.notify_all();
  }
  fail_calls(std::nullopt, {Code::kCancelled, "the store is being closed"});  // service threads may wait for them
  if (engine_) engine_->close();
  threads_.join_all();
  fail_calls(std::nullopt, {Code::kCancelled, "the store was closed"});  // begun meanwhile
}

RpcEndpoint::~RpcEndpoint() { close(); }

// ---- our own calls

std::shared_ptr<RpcEndpoint::Waiting> RpcEndpoint::begin(std::uint64_t peer, std::uint64_t id, Type type, Bytes body,
                                                         Deadline deadline) {
  auto call = std::make_shared<Waiting>();
  call->endpoint = this;
  call->id = id;
  call->peer = peer;
  call->type = type;
  call->deadline = deadline;
  {
    // Before it is sent: the answer may be here first, and a peer that is lost from now on fails it.
    Shard& home = shard(id);
    const std::lock_guard lock(home.mutex);
    home.calls.emplace(id, call);
  }
  // What is sent to a process that is stopped would be done long after its failure was told.
  if (seen_stopped_ && is_stopped(peer)) {
    call->settle(stopped(*call), {});
    return call;
  }
  if (const Status sent = send(peer, body, deadline); !sent.ok()) call->settle(sent, {});
  pay(peer);
  return call;
}

void RpcEndpoint::owe(std::uint64_t peer, Bytes message) {
  HookedEngine* const engine = live_.load();
  if (engine == nullptr || engine->try_send(peer, message).code() != Code::kUnavailable) return;  // sent, or it is lost
  const std::lock_guard lock(owed_mutex_);
  if (owed_.size() < kMaxOwed) owed_.push_back({peer, std::move(message)});
  owes_ = true;
}

std::size_t RpcEndpoint::owed() {
  const std::lock_guard lock(owed_mutex_);
  return owed_.size();
}

std::vector<RpcEndpoint::Owed> RpcEndpoint::take_owed(std::uint64_t peer) {
  std::vector<Owed> out;
  const std::lock_guard lock(owed_mutex_);
  const auto others = std::ranges::stable_partition(owed_, [&](const Owed& one) { return one.peer != peer; });
  std::ranges::move(others, std::back_inserter(out));
  owed_.erase(others.begin(), owed_.end());
  owes_ = !owed_.empty();
  return out;
}

void RpcEndpoint::pay(std::uint64_t peer) {
  if (!owes_) return;
  for (Owed& one : take_owed(peer)) owe(peer, std::move(one.message));
}

Status RpcEndpoint::send(std::uint64_t peer, const Bytes& body, Deadline deadline) {
  const Status sent = engine_->send(peer, as_text(body), remaining(deadline));
  // A peer that is not there was there once: handles come from connections.
  if (sent.code() == Code::kNotFound) return {Code::kPeerLost, sent.message()};
  return sent;
}

bool RpcEndpoint::await(Waiting& call, Deadline until) {
  const auto done = [&call] { return is_settled(call); };
  const auto sleep = [&call, until] {
    std::unique_lock lock(call.mutex);
    (void)call.changed.wait_until(lock, until, [&] { return call.done; });
  };
  if (!done()) call.endpoint->engine_->await_message(call.peer, done, sleep, until);
  return done();
}

Result<Bytes> RpcEndpoint::wait(const std::shared_ptr<Waiting>& call) {
  RpcEndpoint& endpoint = *call->endpoint;
  bool before = endpoint.seen_stopped_;  // else a second look makes sure that it was no short stop
  while (!await(*call, std::min(call->deadline, Clock::now() + (before ? milliseconds(1) : kLook)))) {
    const bool late = expired(call->deadline);
    const bool is_stopped = endpoint.is_stopped(call->peer);
    if (is_stopped && (before || late)) return endpoint.stopped(*call).with_context(type_name(call->type));
    if (late) return endpoint.unanswered(*call).with_context(type_name(call->type));
    before = is_stopped;
  }
  const std::lock_guard lock(call->mutex);
  if (!call->status.ok()) return call->status.with_context(type_name(call->type));
  return std::move(call->answer);
}

void RpcEndpoint::watch(std::uint64_t peer, const ProcessRef& process) {
  const std::lock_guard lock(watched_mutex_);
  watched_peer_ = peer;
  watched_ = process;
}

bool RpcEndpoint::is_stopped(std::uint64_t peer) {
  ProcessRef process;
  {
    const std::lock_guard lock(watched_mutex_);
    if (peer != watched_peer_) return false;
    process = watched_;
  }
  const bool is = process.is_stopped();
  seen_stopped_ = is;
  return is;
}

Status RpcEndpoint::stopped(const Waiting& call) {
  const std::lock_guard lock(watched_mutex_);
  return {Code::kUnavailable,
          name_of(call.peer) + " did not answer for " + seconds_since(call.begun) + ": " + watched_.advice()};
}

Status RpcEndpoint::unanswered(const Waiting& call) {
  return {Code::kDeadlineExceeded, name_of(call.peer) + " did not answer within " + seconds_since(call.begun) +
                                       ": it is overloaded, stopped or cut off (ask it with `kvferry status`), or the "
                                       "time allowed was too short"};
}

std::string RpcEndpoint::name_of(std::uint64_t peer) {
  const auto known = engine_->peer(peer);
  if (!known) return "a node that is gone";
  return "node " + known->node_id().to_string() + " at " + known->endpoint().to_string();
}

Status RpcEndpoint::refused(const Waiting& call, const Status& why) {
  return why.with_context(call.endpoint->name_of(call.peer)).with_context(type_name(call.type));
}

bool RpcEndpoint::is_settled(Waiting& call) {
  const std::lock_guard lock(call.mutex);
  return call.done;
}

void RpcEndpoint::forget(std::uint64_t id) {
  Shard& home = shard(id);
  const std::lock_guard lock(home.mutex);
  home.calls.erase(id);
}

void RpcEndpoint::fail_calls(std::optional<std::uint64_t> of_peer, const Status& why) {
  for (Shard& part : shards_) {
    std::vector<std::shared_ptr<Waiting>> calls;  // settled, and let go, without the lock
    {
      const std::lock_guard lock(part.mutex);
      for (const auto& [id, weak] : part.calls) {
        if (auto call = weak.lock()) calls.push_back(std::move(call));
      }
    }
    for (const auto& call : calls) {
      if (!of_peer || call->peer == *of_peer) call->settle(why, {});
    }
  }
}

// ---- by the threads that read the peers' connections

std::optional<Status> RpcEndpoint::take(std::uint64_t peer, Bytes& body) {
  if (!is_store_message(body)) return std::nullopt;
  if (live_ == nullptr) return Status(Code::kUnavailable, "the node is just starting; connect again");
  pay(peer);
  const auto header = decode_header(body);
  Status status = header.status();
  if (header.ok()) {
    status =
        header->is_answer ? take_answer(peer, *header, body) : take_request(Request{peer, *header, std::move(body)});
  }
  if (!status.ok()) malformed_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

// What nobody waits for any more is late, not wrong.
Status RpcEndpoint::take_answer(std::uint64_t peer, const MessageHeader& header, Bytes& body) {
  std::shared_ptr<Waiting> call;
  {
    Shard& home = shard(header.request_id);
    const std::lock_guard lock(home.mutex);
    const auto found = home.calls.find(header.request_id);
    if (found != home.calls.end()) call = found->second.lock();
  }
  if (call && call->peer == peer) {
    call->settle({}, std::move(body));
  } else if (!call) {
    unclaimed(peer, header.type, body);
  }
  return {};
}

namespace {

Unpin undone(const Pin::Answer& late) {
  Unpin request;
  for (const Pin::Done& done : late.results) {
    if (done.status.ok()) request.pins.push_back(done.pin);
  }
  return request;
}

Abort undone(const Reserve::Answer& late) {
  Abort request;
  for (const Reserve::Done& done : late.results) {
    if (done.put != 0) request.puts.push_back(done.put);
  }
  return request;
}

}  // namespace

// Pins and reserved memory that came too late are given back: else they would be kept until their lease, or session,
// ends, which is the net. Never waits.
void RpcEndpoint::unclaimed(std::uint64_t peer, Type type, const Bytes& body) {
  if (type == Type::kPin) {
    if (const auto late = decode_answer<Pin>(body); late.ok()) owe(peer, undone(*late));
  } else if (type == Type::kReserve) {
    if (const auto late = decode_answer<Reserve>(body); late.ok()) owe(peer, undone(*late));
  }
}

Status RpcEndpoint::take_request(Request request) {
  if (handler_ == nullptr) {
    answer(std::move(request), encode_refusal(request.header, {Code::kUnsupported, "a client answers no requests"}));
    return {};
  }
  KVF_ASSIGN_OR_RETURN(std::optional<Bytes> done, handler_->quick(request));
  if (done) {
    answer(std::move(request), *std::move(done));
    return {};
  }
  const MessageHeader header = request.header;
  const std::uint64_t peer = request.peer;
  if (queue(handler_->pool(header.type), {std::move(request), std::nullopt})) return {};
  refused_.fetch_add(1, std::memory_order_relaxed);
  answer(Request{peer, header, {}},
         encode_refusal(header, {Code::kResourceExhausted, "the node has too many requests waiting; try again"}));
  return {};
}

// Never waits: what cannot go out at once is left to a service thread.
void RpcEndpoint::answer(Request request, Bytes body) {
  if (request.header.request_id == 0 || body.empty()) return;
  if (live_.load()->try_send(request.peer, body).code() != Code::kUnavailable) return;  // sent, or the peer is lost
  const std::uint64_t peer = request.peer;
  request.body.clear();
  if (queue(0, {std::move(request), std::move(body)})) return;
  log_event(LogLevel::kWarning, "store_answer_dropped", {{"peer", peer}});
}

bool RpcEndpoint::queue(std::size_t pool, Job job) {
  Pool& to = pools_[std::min(pool, kMaxPools - 1)];
  {
    const std::lock_guard lock(to.mutex);
    const std::size_t bytes = job.request.body.size() + (job.answer ? job.answer->size() : 0);
    if (to.closed || !to.has_threads || to.jobs.size() >= kMaxQueued || to.bytes + bytes > kMaxQueuedBytes) {
      return false;
    }
    to.bytes += bytes;
    to.jobs.push_back(std::move(job));
  }
  to.changed.notify_one();
  return true;
}

void RpcEndpoint::lose(std::uint64_t peer, const Status& why) {
  const bool ours = why.code() == Code::kCancelled;  // closed by us: still no answer will come
  (void)take_owed(peer);
  fail_calls(peer, ours ? why : Status(Code::kPeerLost, why.message()));
  if (handler_ != nullptr) handler_->lost(peer, why);
}

// ---- service threads

void RpcEndpoint::serve(Pool& pool) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(pool.mutex);
      pool.changed.wait(lock, [&] { return pool.closed || !pool.jobs.empty(); });  // a worker's rest: close() ends it
      if (pool.closed) return;
      job = std::move(pool.jobs.front());
      pool.jobs.pop_front();
      pool.bytes -= job.request.body.size() + (job.answer ? job.answer->size() : 0);
    }
    run(std::move(job));
  }
}

void RpcEndpoint::run(Job job) {
  const std::uint64_t peer = job.request.peer;
  if (!job.answer) {
    auto done = handler_->handle(job.request);
    if (!done.ok()) {
      malformed_.fetch_add(1, std::memory_order_relaxed);
      log_event(LogLevel::kWarning, "malformed_store_message", {{"peer", peer}, {"reason", done.status()}});
      if (const auto connection = engine_->peer(peer)) connection->close();
      return;
    }
    job.answer = *std::move(done);
  }
  if (job.answer->empty() || job.request.header.request_id == 0) return;
  const Status sent = send(peer, *job.answer, deadline_in(kAnswerTimeout));
  if (sent.ok() || sent.code() == Code::kPeerLost || sent.code() == Code::kCancelled) return;
  log_event(LogLevel::kWarning, "store_answer_dropped", {{"peer", peer}, {"reason", sent}});
}

}  // namespace kvferry::store
