// Requests and answers over one transfer engine. Many calls may be under way at once, from many threads and to many
// peers. Each ends with its answer, at its deadline, or at once with kPeerLost when the peer is lost.
//
// Threads: an answer is handed over by the thread that reads the peer's connection. So is a request, to
// Handler::quick(); what that leaves is handled by service threads, in pools: a pool's threads may wait for the peers'
// pools below it (and for what is answered quickly), never for those of its own number or above, so that no ring of
// nodes waits for itself.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/hooked_engine.h"
#include "engine/thread_group.h"
#include "store/messages.h"
#include "store/process.h"

namespace kvferry::store {

std::string seconds_since(Clock::time_point begin);  // for messages: "1.2 s"

struct Request {
  std::uint64_t peer = 0;  // Peer::handle() of the connection it came by
  MessageHeader header;
  Bytes body;
};

// What is asked of us. Thread-safe; outlives the endpoint.
class Handler {
 public:
  virtual ~Handler() = default;
  // Must not wait. nullopt: handle() has to. An answer without bytes is not sent. A status that is not OK ends the
  // connection: what came was malformed.
  virtual Result<std::optional<Bytes>> quick(const Request& request) = 0;
  // By a service thread. As quick().
  virtual Result<Bytes> handle(const Request& request) = 0;
  virtual std::size_t pool(Type type) const = 0;
  // False: quick() has so little to do that those who wait for answers may do it, which brings answers sooner.
  virtual bool serves() const { return true; }
  virtual void lost(std::uint64_t peer, const Status& why) = 0;  // must not wait
};

// The body is kept, since values point into it.
template <typename Request>
struct Received {
  typename Request::Answer answer;
  Bytes body;
  const typename Request::Answer* operator->() const { return &answer; }
  const typename Request::Answer& operator*() const { return answer; }
};

class RpcEndpoint {
  struct Waiting;

 public:
  static constexpr std::size_t kMaxPools = 5;
  using Pools = std::vector<std::size_t>;  // threads of each

  // `handler` may be null: then nobody is answered. `threads` of pools that are used only.
  static Result<std::unique_ptr<RpcEndpoint>> create(EngineOptions options, Handler* handler, const Pools& threads);
  ~RpcEndpoint();
  RpcEndpoint(const RpcEndpoint&) = delete;
  RpcEndpoint& operator=(const RpcEndpoint&) = delete;

  HookedEngine& engine() { return *engine_; }

  // A call under way. Movable; given up when it dies, which must be before the endpoint does.
  template <typename Request>
  class Call {
   public:
    Call(Call&&) noexcept = default;
    Call& operator=(Call&&) noexcept = default;
    bool ready() const { return RpcEndpoint::is_settled(*pending_); }  // finish() would not wait
    // ready(), or until then at most.
    bool await(Deadline until) const { return RpcEndpoint::await(*pending_, until); }
    // Waits until the deadline of the call. Once.
    Result<Received<Request>> finish() {
      KVF_ASSIGN_OR_RETURN(Bytes body, RpcEndpoint::wait(pending_));
      auto answer = decode_answer<Request>(body);
      if (!answer.ok()) return RpcEndpoint::refused(*pending_, answer.status());
      return Received<Request>{*std::move(answer), std::move(body)};
    }

   private:
    friend class RpcEndpoint;
    explicit Call(std::shared_ptr<Waiting> waiting) : pending_(std::move(waiting)) {}
    std::shared_ptr<Waiting> pending_;
  };

  // Sends it, waiting for socket space at most. A call that could not be sent says so in finish().
  template <typename Request>
  Call<Request> start(std::uint64_t peer, const Request& request, Deadline deadline) {
    const std::uint64_t id = next_request_.fetch_add(1, std::memory_order_relaxed);
    return Call<Request>(begin(peer, id, Request::kType, encode_request(id, request), deadline));
  }
  template <typename Request>
  Result<Received<Request>> call(std::uint64_t peer, const Request& request, Deadline deadline) {
    return start(peer, request, deadline).finish();
  }
  // No answer is wanted.
  template <typename Request>
  Status post(std::uint64_t peer, const Request& request, Deadline deadline) {
    return send(peer, encode_request(0, request), deadline);
  }

  // What must get there some time, if the peer stays: at once, else when the connection takes it, which is tried with
  // each message to or from the peer. Never waits. For little things: no answer is wanted.
  template <typename Request>
  void owe(std::uint64_t peer, const Request& request) {
    owe(peer, encode_request(0, request));
  }

  // From now on a call to this peer, which is a process of this host, fails soon with kUnavailable while that process
  // is stopped. One peer at a time.
  void watch(std::uint64_t peer, const ProcessRef& process);

  std::uint64_t malformed() const { return malformed_.load(std::memory_order_relaxed); }
  std::size_t owed();  // messages that wait for a connection to take them
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }  // too many waited
  // Fails what is under way with kCancelled, ends all connections, joins all threads. No handler runs afterwards.
  void close();

 private:
  static constexpr std::size_t kShards = 16;
  static constexpr std::size_t kMaxQueued = 16384;
  static constexpr std::size_t kMaxQueuedBytes = 64u << 20;
  static constexpr std::size_t kMaxOwed = 4096;  // messages; the end of the session is the net

  struct Job {
    Request request;
    std::optional<Bytes> answer;  // to be sent only
  };
  struct Pool {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Job> jobs;  // all below guarded by mutex
    std::size_t bytes = 0;
    bool closed = false;
    bool has_threads = false;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::uint64_t, std::weak_ptr<Waiting>> calls;  // guarded by mutex
  };

  struct Owed {
    std::uint64_t peer;
    Bytes message;
  };

  RpcEndpoint() = default;
  Status start_threads(const Pools& threads);
  std::shared_ptr<Waiting> begin(std::uint64_t peer, std::uint64_t id, Type type, Bytes body, Deadline deadline);
  Status send(std::uint64_t peer, const Bytes& body, Deadline deadline);
  void owe(std::uint64_t peer, Bytes message);
  void pay(std::uint64_t peer);  // what is owed to it, as far as it can be sent now
  std::vector<Owed> take_owed(std::uint64_t peer);
  static Result<Bytes> wait(const std::shared_ptr<Waiting>& call);
  bool is_stopped(std::uint64_t peer);
  Status stopped(const Waiting& call);
  Status unanswered(const Waiting& call);
  static Status refused(const Waiting& call, const Status& why);  // what the other side answered, with its name
  std::string name_of(std::uint64_t peer);
  static bool await(Waiting& call, Deadline until);
  static bool is_settled(Waiting& call);
  Shard& shard(std::uint64_t id) { return shards_[id % kShards]; }
  void forget(std::uint64_t id);

  std::optional<Status> take(std::uint64_t peer, Bytes& body);
  Status take_answer(std::uint64_t peer, const MessageHeader& header, Bytes& body);
  void unclaimed(std::uint64_t peer, Type type, const Bytes& body);
  Status take_request(Request request);
  void answer(Request request, Bytes body);
  bool queue(std::size_t pool, Job job);
  void lose(std::uint64_t peer, const Status& why);
  void fail_calls(std::optional<std::uint64_t> of_peer, const Status& why);
  void serve(Pool& pool);
  void run(Job job);

  Handler* handler_ = nullptr;
  std::atomic<std::uint64_t> next_request_{1};
  std::atomic<std::uint64_t> malformed_{0}, refused_{0};
  std::array<Shard, kShards> shards_;
  std::array<Pool, kMaxPools> pools_;
  std::mutex owed_mutex_;
  std::vector<Owed> owed_;         // guarded by owed_mutex_
  std::atomic<bool> owes_{false};  // something is in there
  std::mutex watched_mutex_;
  std::uint64_t watched_peer_ = 0;         // guarded by watched_mutex_
  ProcessRef watched_;                     // guarded by watched_mutex_
  std::atomic<bool> seen_stopped_{false};  // at the last look
  ThreadGroup threads_;
  std::unique_ptr<HookedEngine> engine_;
  std::atomic<HookedEngine*> live_{nullptr};  // engine_, once it is complete: peers may come before
};

}  // namespace kvferry::store
