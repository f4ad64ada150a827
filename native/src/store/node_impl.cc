#include "store/node_impl.h"

#include <algorithm>

#include "base/log.h"
#include "base/numa.h"

namespace kvferry::store {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kSmallestArena = 1u << 20;

// As HostId: nodes of one host by the same text. Members bring their own; this is for a node that is alone.
std::string host_text() { return HostId::current().is_nil() ? "local" : "this host"; }

std::uint64_t whole_pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

Result<std::unique_ptr<Node>> Node::create(NodeOptions options) {
  KVF_ASSIGN_OR_RETURN(auto node, NodeImpl::start(std::move(options)));
  return std::unique_ptr<Node>(std::move(node));
}

Result<std::unique_ptr<NodeImpl>> NodeImpl::start(NodeOptions options) {
  if (options.dram_bytes < kSmallestArena) {
    return {Code::kInvalidArgument,
            "dram_bytes is " + std::to_string(options.dram_bytes) + "; at least 1 MiB is needed"};
  }
  if (options.cluster.empty() || options.cluster.size() > kMaxClusterBytes) {
    return {Code::kInvalidArgument, "cluster: a name of 1 to 255 bytes is needed"};
  }
  if (options.default_replicas == 0 || options.default_replicas > UINT8_MAX) {
    return {Code::kInvalidArgument, "default_replicas must be 1 to 255"};
  }
  std::unique_ptr<NodeImpl> node(new NodeImpl(std::move(options)));
  if (const Status opened = node->open(); !opened.ok()) {
    node->close();
    return opened;
  }
  return node;
}

Status NodeImpl::make_region(std::uint64_t bytes, const std::string& name, std::uint8_t access, RegionInfo* info,
                             std::span<std::byte>* memory) {
  auto made = core_.rpc->engine().allocate(whole_pages(bytes), name, access);
  if (!made.ok()) return made.status().with_context(name);
  *info = made->first;
  *memory = {static_cast<std::byte*>(made->second), made->first.length};
  return {};
}

// One arena per NUMA node that has memory; all are writable by clients of this host, and by nobody else's writes: peers
// are not told to write, and what they hold is read by name.
Status NodeImpl::allocate() {
  KVF_RETURN_IF_ERROR(LocalStore::check_index(core_.options));
  const std::size_t nodes = core_.options.engine.numa_aware ? std::max<std::size_t>(numa_nodes().size(), 1) : 1;
  const std::uint64_t each = whole_pages(std::max(core_.options.dram_bytes / nodes, kSmallestArena));
  for (std::size_t i = 0; i < nodes; ++i) {
    RegionInfo info;
    std::span<std::byte> memory;
    KVF_RETURN_IF_ERROR(
        make_region(each, "kvferry.store.arena" + std::to_string(i), kRemoteRead | kRemoteWrite, &info, &memory)
            .with_context("memory for objects (store.dram)"));
    core_.arenas.push_back(info);
    core_.arena_memory.push_back(memory);
  }
  std::span<std::byte> index;
  KVF_RETURN_IF_ERROR(
      make_region(LocalStore::index_bytes(core_.options), "kvferry.store.index", kRemoteRead, &core_.index, &index)
          .with_context(LocalStore::about_index(core_.options)));
  core_.index_memory = index;
  return make_region(LocalStore::pins_bytes(core_.options), "kvferry.store.pins", kRemoteRead | kRemoteWrite,
                     &core_.pins, &core_.pins_memory);
}

Status NodeImpl::open() {
  KVF_ASSIGN_OR_RETURN(core_.rpc, RpcEndpoint::create(core_.options.engine, &service_, Service::threads()));
  KVF_RETURN_IF_ERROR(allocate());
  core_.self = {core_.rpc->engine().node_id(), core_.rpc->engine().endpoint(), host_text(), core_.options.dram_bytes};
  LocalStoreOptions local;
  local.arenas = core_.arena_memory;
  local.index = core_.index_memory;
  local.pins = core_.pins_memory;
  local.node_id = core_.self.node_id;
  local.node = core_.options;
  KVF_ASSIGN_OR_RETURN(core_.store, LocalStore::create(std::move(local)));
  core_.sessions = std::make_unique<Sessions>(*core_.store);
  core_.cluster = std::make_unique<Cluster>(
      *core_.rpc, core_.pulse,
      Cluster::Options{core_.self, core_.options.cluster, core_.options.default_replicas, core_.options.suspect_after},
      Cluster::Callbacks{[this](const std::shared_ptr<MemberLink>& link) { service_.member_up(link); },
                         [this](const NodeId& node) { suspected(node); },
                         [this](std::uint64_t handle, const NodeId& node) { service_.attaching(handle, node); },
                         [this](const NodeId& node) { heard(node); },
                         [this](const NodeId& node) { service_.missed(node); }});
  KVF_RETURN_IF_ERROR(core_.pulse.start(core_.index_memory, [this] { service_.stood_still(); }));
  KVF_RETURN_IF_ERROR(service_.start());
  KVF_RETURN_IF_ERROR(core_.cluster->start());
  core_.ready = true;
  return {};
}

void NodeImpl::set_members(std::uint64_t view, std::vector<Member> members) {
  if (status().ok()) (void)service_.set_members(view, std::move(members));
}

void NodeImpl::on_suspect(std::function<void(const NodeId&)> callback) {
  const std::lock_guard lock(mutex_);
  on_suspect_ = std::move(callback);
}

void NodeImpl::suspected(const NodeId& node) {
  core_.counters.add(NodeCounters::kSuspicions);
  std::function<void(const NodeId&)> callback;
  {
    const std::lock_guard lock(mutex_);
    callback = on_suspect_;
  }
  if (callback) callback(node);
}

void NodeImpl::on_heard(std::function<void(const NodeId&)> callback) {
  const std::lock_guard lock(mutex_);
  on_heard_ = std::move(callback);
}

void NodeImpl::heard(const NodeId& node) {
  std::function<void(const NodeId&)> callback;
  {
    const std::lock_guard lock(mutex_);
    callback = on_heard_;
  }
  if (callback) callback(node);
}

Status NodeImpl::status() const {
  const std::lock_guard lock(mutex_);
  return closed_ ? Status(Code::kCancelled, "the node is closed") : Status();
}

Result<std::uint64_t> NodeImpl::drain(milliseconds timeout) {
  KVF_RETURN_IF_ERROR(status());
  return service_.drain(deadline_in(timeout));
}

void NodeImpl::end_embedded(const SessionInfo& session) {
  core_.sessions->end_embedded(session.id);
  core_.puts.end_session(session.id);
}

MemberList NodeImpl::members() const {
  const auto view = core_.cluster->view();
  return {view->number, view->members};
}

void NodeImpl::close() {
  if (fork_count() != forks_) return;  // a child of our process has none of its threads
  const std::lock_guard closing(close_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  core_.ready = false;
  core_.pulse.close();
  // Whatever waits for other nodes must hear first that no answer will come.
  if (core_.rpc) core_.rpc->close();
  if (core_.cluster) core_.cluster->close();
  service_.close();
  if (core_.store) core_.store->close();
}

}  // namespace kvferry::store
