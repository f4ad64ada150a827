// A node: its engine and memory, what it holds, and its dealings with clients and other nodes.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include "base/fork_count.h"
#include "store/local_reader.h"
#include "store/service.h"

namespace kvferry::store {

class NodeImpl final : public Node {
 public:
  static Result<std::unique_ptr<NodeImpl>> start(NodeOptions options);
  ~NodeImpl() override { close(); }

  NodeId node_id() const override { return core_.self.node_id; }
  Endpoint endpoint() const override { return core_.self.endpoint; }
  void set_members(std::uint64_t view, std::vector<Member> members) override;
  void on_suspect(std::function<void(const NodeId&)> callback) override;
  void on_heard(std::function<void(const NodeId&)> callback) override;
  NodeStats stats() const override { return service_.stats(); }
  Status status() const override;
  Result<std::uint64_t> drain(milliseconds timeout) override;
  void close() override;

  // For a client in this process. Its requests are those of messages.h, as bodies; so are the answers.
  SessionInfo attach_embedded() { return core_.sessions->attach_embedded(); }
  void end_embedded(const SessionInfo& session);
  Result<Bytes> serve(const SessionInfo& who, ByteView request) { return service_.serve(who, request); }
  template <typename Request>
  Result<Received<Request>> call(const SessionInfo& who, const Request& request) {
    KVF_ASSIGN_OR_RETURN(Bytes body, serve(who, encode_request(1, request)));
    KVF_ASSIGN_OR_RETURN(typename Request::Answer answer, decode_answer<Request>(body));
    return Received<Request>{std::move(answer), std::move(body)};
  }
  SharedMemory memory() const { return {core_.index_memory, core_.pins_memory, core_.arena_memory}; }
  Result<std::uint32_t> add_page() {
    return core_.store->add_client([] { return false; });
  }
  void remove_page(std::uint32_t page) { core_.store->remove_client(page); }
  RpcEndpoint& rpc() { return *core_.rpc; }
  LocalStore& store() { return *core_.store; }
  MemberList members() const;
  Pulse& pulse() { return core_.pulse; }
  // For tests: all members are up and have told all that they hold.
  bool is_settled() const {
    const auto view = core_.cluster->view();
    return core_.is_settled(*view) && std::ranges::all_of(view->links, [](const auto& link) { return link->is_up(); });
  }
  const NodeOptions& options() const { return core_.options; }

 private:
  explicit NodeImpl(NodeOptions options) : core_(std::move(options)), service_(core_) {}
  Status open();
  Status allocate();
  Status make_region(std::uint64_t bytes, const std::string& name, std::uint8_t access, RegionInfo* info,
                     std::span<std::byte>* memory);
  void suspected(const NodeId& node);
  void heard(const NodeId& node);

  const std::uint64_t forks_ = fork_count();
  NodeCore core_;
  Service service_;
  mutable std::mutex mutex_;
  std::function<void(const NodeId&)> on_suspect_;  // guarded by mutex_
  std::function<void(const NodeId&)> on_heard_;    // guarded by mutex_
  bool closed_ = false;                            // guarded by mutex_
  std::mutex close_mutex_;                         // one close() at a time
};

}  // namespace kvferry::store
