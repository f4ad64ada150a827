// kvferry::store::Store: checks arguments, turns keys into ids, and leaves the work to the files beside it.
#include <algorithm>
#include <string>
#include <utility>

#include "store/client/core.h"
#include "store/client/gets.h"
#include "store/client/puts.h"
#include "store/client/queries.h"
#include "store/runs.h"

namespace kvferry::store {
namespace {

// Why a node could not be attached to, in short: one that refuses us is there, and waiting for it does not help.
std::string what_it_did(const Status& failure) {
  const bool refused = failure.code() == Code::kUnauthenticated || failure.code() == Code::kPermissionDenied;
  return refused ? " refused this program" : " is not there";
}

constexpr milliseconds kRetryHome{200};
constexpr milliseconds kAttachAgain{2000};
constexpr int kViewTries = 5;
constexpr std::size_t kMaxTags = 16;
constexpr std::size_t kMaxTagBytes = 255;

// A client is asked for nothing but to take note of the members.
class ClientHandler final : public Handler {
 public:
  void serve(Links* links) { links_.store(links, std::memory_order_release); }

  Result<std::optional<Bytes>> quick(const Request& request) override {
    if (request.header.type != Type::kMemberList) {
      return std::optional(encode_refusal(request.header, {Code::kUnsupported, "this is a client, not a node"}));
    }
    KVF_ASSIGN_OR_RETURN(const auto view, decode_request<MemberList>(request.body));
    if (Links* links = links_.load(std::memory_order_acquire)) links->take_view(request.peer, view);
    return std::optional<Bytes>(Bytes{});
  }
  Result<Bytes> handle(const Request&) override { return Bytes{}; }
  std::size_t pool(Type) const override { return 0; }
  bool serves() const override { return false; }
  void lost(std::uint64_t peer, const Status&) override {
    if (Links* links = links_.load(std::memory_order_acquire)) links->lost(peer);
  }

 private:
  std::atomic<Links*> links_{nullptr};
};

Status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= kMaxKeyBytes) return {};
  return {Code::kInvalidArgument,
          "a key has 1 to " + std::to_string(kMaxKeyBytes) + " bytes, this one has " + std::to_string(key.size())};
}

// A key as messages name it.
std::string called(std::string_view key) {
  constexpr std::size_t kShown = 64;
  const std::string_view begin = key.substr(0, kShown);
  const bool text = std::ranges::all_of(begin, [](char byte) { return byte >= ' ' && byte <= '~'; });
  std::string shown = text ? "\"" + std::string(begin) : "hex:";
  for (const char byte : text ? std::string_view() : begin) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto bits = static_cast<unsigned char>(byte);
    shown += kDigits[bits >> 4];
    shown += kDigits[bits & 15];
  }
  if (key.size() > kShown) shown += "...";
  return "key " + shown + (text ? "\"" : "");
}

// So that who reads the error of one of many knows whose it is.
void name_key(std::string_view key, Status* status) {
  if (!status->ok()) *status = status->with_context(called(key));
}

Status check_tags(const std::vector<std::string>& tags) {
  if (tags.size() > kMaxTags) {
    return {Code::kInvalidArgument, "at most " + std::to_string(kMaxTags) + " tags are possible"};
  }
  for (const std::string& tag : tags) {
    if (tag.empty() || tag.size() > kMaxTagBytes) {
      return {Code::kInvalidArgument, "a tag has 1 to " + std::to_string(kMaxTagBytes) + " bytes"};
    }
  }
  return {};
}

class StoreClient final : public Store {
 public:
  StoreClient(StoreOptions options, Endpoint endpoint) : core_(std::move(options), std::move(endpoint)) {}
  ~StoreClient() override { close(); }

  Status start() {
    KVF_ASSIGN_OR_RETURN(core_.rpc, RpcEndpoint::create(core_.options.engine, &handler_, {}));
    core_.links = std::make_unique<Links>(*core_.rpc, core_.options.cluster);
    core_.memory = std::make_unique<ProgramMemory>(core_.rpc->engine());
    handler_.serve(core_.links.get());
    return core_.home(Clock::now() + core_.options.timeout).status();
  }

  std::vector<PutResult> put(std::span<const std::string_view> keys, std::span<const ConstPieces> values,
                             const PutOptions& options) override {
    std::vector<Offer> offers(keys.size());
    Status bad = check_tags(options.tags);
    if (bad.ok() && values.size() != keys.size()) bad = {Code::kInvalidArgument, "there must be a value for each key"};
    if (bad.ok() && !options.parents.empty() && options.parents.size() != keys.size()) {
      bad = {Code::kInvalidArgument, "there must be a parent for each key, or none at all"};
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Status wrong = bad.ok() ? check_key(keys[i]) : bad;
      if (!wrong.ok()) {
        offers[i].finish({std::move(wrong), false, 0});
        continue;
      }
      const Result<std::uint64_t> bytes = measure(values[i]);
      if (!bytes.ok()) {
        offers[i].finish({bytes.status(), false, 0});
        continue;
      }
      offers[i].value = values[i];
      describe(keys, i, options, offers[i].object);
      offers[i].object.bytes = *bytes;
    }
    store::put(core_, offers, until(options.timeout));
    std::vector<PutResult> out;
    out.reserve(offers.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      name_key(keys[i], &offers[i].result.status);
      out.push_back(std::move(offers[i].result));
    }
    return out;
  }

  std::vector<GetResult> get_into(std::span<const std::string_view> keys, std::span<const Pieces> targets,
                                  const ReadOptions& options) override {
    std::vector<Want> wants(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Status bad = check_key(keys[i]);
      if (bad.ok() && targets.size() != keys.size()) {
        bad = {Code::kInvalidArgument, "there must be a target for each key"};
      }
      if (bad.ok()) bad = measure(targets[i]).status();
      if (!bad.ok()) {
        wants[i].finish(std::move(bad), 0);
        continue;
      }
      wants[i].id = core_.ids.of(keys[i]);
      wants[i].target = targets[i];
      wants[i].verify = options.verify.value_or(core_.options.verify);
    }
    store::get(core_, wants, until(options.timeout));
    std::vector<GetResult> out;
    out.reserve(wants.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      name_key(keys[i], &wants[i].result.status);
      out.push_back(std::move(wants[i].result));
    }
    return out;
  }

  GetResult get_range(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                      const ReadOptions& options) override {
    if (Status bad = check_key(key); !bad.ok()) return {std::move(bad), 0};
    if (Status bad = measure(Pieces(&target, 1)).status(); !bad.ok()) return {std::move(bad), 0};
    Want want;
    want.id = core_.ids.of(key);
    want.target = {&target, 1};
    want.offset = offset;
    want.whole = false;
    store::get(core_, {&want, 1}, until(options.timeout));
    name_key(key, &want.result.status);
    return want.result;
  }

  std::vector<Result<std::uint64_t>> sizes(std::span<const std::string_view> keys,
                                           const ReadOptions& options) override {
    return for_good_keys<Result<std::uint64_t>>(
        keys, [&](std::span<const ObjectId> ids) { return store::sizes(core_, ids, until(options.timeout)); });
  }

  Status exists(std::span<const std::string_view> keys, std::span<std::uint8_t> found,
                const ReadOptions& options) override {
    if (found.size() != keys.size()) return {Code::kInvalidArgument, "there must be a byte for each key"};
    KVF_ASSIGN_OR_RETURN(const auto ids, ids_of(keys));
    return store::exists(core_, ids, found, until(options.timeout));
  }

  Result<std::uint64_t> match_prefix(std::span<const std::string_view> keys, const ReadOptions& options) override {
    KVF_ASSIGN_OR_RETURN(const auto ids, ids_of(keys));
    return store::match_prefix(core_, ids, until(options.timeout));
  }

  Result<View> view(std::string_view key, const ReadOptions& options) override {
    KVF_RETURN_IF_ERROR(check_key(key));
    auto found = view_in_place(key, options);
    if (!found.ok()) return found.status().with_context(called(key));
    return found;
  }

  Result<View> view_in_place(std::string_view key, const ReadOptions& options) {
    const ObjectId id = core_.ids.of(key);
    const Deadline deadline = until(options.timeout);
    KVF_ASSIGN_OR_RETURN(const std::shared_ptr<Home> home, core_.home(deadline));
    if (home->reader() == nullptr) {
      return {Code::kUnsupported, "the node is on another host: objects can be read into memory of one's own only"};
    }
    for (int attempt = 0; attempt < kViewTries; ++attempt) {  // what was brought may be gone again
      auto pin = home->reader()->pin(id);
      KVF_RETURN_IF_ERROR(pin.status());
      if (!pin->has_value() && home->reader()->find(id)) {
        pin = pin_from_ssd(*home, id, deadline);
        KVF_RETURN_IF_ERROR(pin.status());
      } else if (!pin->has_value()) {
        KVF_RETURN_IF_ERROR(bring(*home, id, deadline));
      }
      if (pin->has_value()) return make_view(home, **pin, options.verify.value_or(core_.options.verify));
    }
    return {Code::kResourceExhausted, "the object was displaced again " + std::to_string(kViewTries) +
                                          " times before it could be pinned: the node's memory is too full of what is "
                                          "read and written; give it more (store.dram), or try again"};
  }

  std::vector<Status> remove(std::span<const std::string_view> keys, const ReadOptions& options) override {
    auto out = for_good_keys<Status>(
        keys, [&](std::span<const ObjectId> ids) { return store::remove(core_, ids, until(options.timeout)); });
    for (std::size_t i = 0; i < keys.size(); ++i) name_key(keys[i], &out[i]);
    return out;
  }

  Result<std::uint64_t> remove_tag(std::string_view tag, const ReadOptions& options) override {
    return store::remove_tag(core_, tag, until(options.timeout));
  }

  Status prefetch(std::span<const std::string_view> keys, milliseconds within) override {
    KVF_ASSIGN_OR_RETURN(const auto ids, ids_of(keys));
    const Deadline deadline = until(std::min(within, core_.options.timeout));  // later it is of no use
    KVF_ASSIGN_OR_RETURN(const std::shared_ptr<Home> home, core_.home(deadline));
    for (std::size_t first = 0; first < ids.size(); first += kMaxIds) {
      Prefetch request;
      const std::size_t count = std::min(kMaxIds, ids.size() - first);
      request.ids.assign(ids.begin() + static_cast<std::ptrdiff_t>(first),
                         ids.begin() + static_cast<std::ptrdiff_t>(first + count));
      request.within = within;
      KVF_RETURN_IF_ERROR(core_.rpc->post(home->connection()->handle(), request, deadline));
    }
    return {};
  }

  Result<std::vector<ObjectInfo>> list(std::string_view prefix, std::string_view after, std::uint32_t limit,
                                       const ReadOptions& options) override {
    List request;
    request.tenant = core_.options.tenant;
    request.prefix = prefix;
    request.after = after;
    request.limit = std::min<std::uint32_t>(limit, kMaxListed);
    return store::list(core_, request, until(options.timeout));
  }

  Status register_memory(void* data, std::uint64_t length) override { return core_.memory->add(data, length); }
  Status unregister_memory(void* data) override { return core_.memory->remove(data); }

  Result<NodeStats> node_stats(milliseconds timeout) override {
    const Deadline deadline = Clock::now() + timeout;
    KVF_ASSIGN_OR_RETURN(const std::shared_ptr<Home> home, core_.home(deadline));
    KVF_ASSIGN_OR_RETURN(auto answer, core_.rpc->call(home->connection()->handle(), Stats{}, deadline));
    return std::move(answer.answer);
  }

  std::vector<Member> members() const override { return core_.links->all(); }
  bool in_place() const override {
    const std::lock_guard lock(core_.mutex);
    return core_.current != nullptr && core_.current->reader() != nullptr;
  }
  Status status() const override { return core_.home_status(); }

  std::map<std::string, std::uint64_t> counters() const override {
    const ClientCounters& from = core_.counters;
    return {{"client_puts_total", from.puts},
            {"client_put_bytes_total", from.put_bytes},
            {"client_put_conflicts_total", from.put_conflicts},
            {"client_put_failures_total", from.put_failures},
            {"client_memory_hits_total", from.memory_hits},
            {"client_ssd_hits_total", from.ssd_hits},
            {"client_remote_hits_total", from.remote_hits},
            {"client_misses_total", from.misses},
            {"client_get_bytes_total", from.get_bytes},
            {"client_failovers_total", from.failovers},
            {"client_attachments_total", from.reattached}};
  }

  void close() override {
    if (core_.closed.exchange(true)) return;
    if (core_.forked()) return;  // the session is the parent's, and the mutex may have been locked there
    std::shared_ptr<Home> home;
    {
      const std::lock_guard lock(core_.mutex);
      home = std::exchange(core_.current, nullptr);
    }
    core_.attached.notify_all();
    if (!core_.rpc) return;
    // Views and calls under way hold it, too: then the pins stay, and what is being written to stays reserved, until
    // this process ends. Nobody can come to hold it any more.
    const bool unused = home && home.use_count() == 1;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (unused && home->alive()) {
      (void)core_.rpc->call(home->connection()->handle(), Detach{}, Clock::now() + core_.links->patience());
    }
    handler_.serve(nullptr);
    core_.rpc->close();
  }

 private:
  Deadline until(std::optional<milliseconds> timeout) const {
    return Clock::now() + timeout.value_or(core_.options.timeout);
  }

  Result<std::vector<ObjectId>> ids_of(std::span<const std::string_view> keys) const {
    std::vector<ObjectId> ids;
    ids.reserve(keys.size());
    for (const std::string_view key : keys) {
      KVF_RETURN_IF_ERROR(check_key(key));
      ids.push_back(core_.ids.of(key));
    }
    return ids;
  }

  // ask(ids) gives an R for each; keys that are none have their own error.
  template <typename R, typename Ask>
  std::vector<R> for_good_keys(std::span<const std::string_view> keys, Ask ask) const {
    std::vector<R> out;
    std::vector<ObjectId> ids;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      out.emplace_back(check_key(keys[i]));
      if (check_key(keys[i]).ok()) ids.push_back(core_.ids.of(keys[i])), places.push_back(i);
    }
    auto answers = ask(ids);
    for (std::size_t i = 0; i < ids.size(); ++i) out[places[i]] = std::move(answers[i]);
    return out;
  }

  void describe(std::span<const std::string_view> keys, std::size_t index, const PutOptions& options,
                NewObject& object) const {
    object.id = core_.ids.of(keys[index]);
    object.key = keys[index];
    object.tenant = core_.options.tenant;
    object.replicas = options.replicas;
    object.expires_in = options.ttl;
    object.tags = options.tags;
    std::string_view parent;
    if (!options.parents.empty()) parent = options.parents[index];
    if (parent.empty() && options.chain && index > 0) parent = keys[index - 1];
    if (!parent.empty()) object.parent = core_.ids.of(parent);
    object.depth = options.chain ? static_cast<std::uint32_t>(index) : 0;
  }

  // Has the node bring the object into its memory.
  Status bring(const Home& home, const ObjectId& id, Deadline deadline) {
    Pull request;
    request.ids = {id};
    request.timeout = std::max(std::chrono::floor<milliseconds>(deadline - Clock::now()), milliseconds(1));
    KVF_ASSIGN_OR_RETURN(auto answer, core_.rpc->call(home.connection()->handle(), request, deadline));
    if (answer->results.size() != 1) return {Code::kProtocolError, "one answer was expected"};
    return answer->results[0];
  }

  // Has the node pin what it has on SSD, which brings it into memory, until we have pinned it there. nullopt: gone.
  Result<std::optional<LocalPin>> pin_from_ssd(const Home& home, const ObjectId& id, Deadline deadline) {
    Pin request;
    request.ids = {id};
    KVF_ASSIGN_OR_RETURN(auto answer, core_.rpc->call(home.connection()->handle(), request, deadline));
    if (answer->results.size() != 1) return {Code::kProtocolError, "one answer was expected"};
    const Pin::Done& done = answer->results[0];
    if (done.status.code() == Code::kNotFound) return std::optional<LocalPin>();
    KVF_RETURN_IF_ERROR(done.status);
    auto pin = home.reader()->pin(id);
    Unpin release;
    release.pins = {done.pin};
    (void)core_.rpc->post(home.connection()->handle(), release, Clock::now() + core_.links->patience());
    return pin;
  }

  Result<View> make_view(const std::shared_ptr<Home>& home, const LocalPin& pin, bool verify) const {
    View::Contents contents;
    for (const auto& run : home->memory(std::span(pin.places))) contents.pieces.emplace_back(run);
    contents.bytes = pin.held.bytes;
    contents.digest = pin.held.digest;
    contents.release = [home, pin, forks = core_.forks] {
      if (fork_count() == forks) home->reader()->unpin(pin);  // else the pin is the parent's, who may be reading
    };
    View view(std::move(contents));
    if (verify && digest_of(view.pieces()) != view.digest()) {
      return {Code::kDataCorrupt, "the bytes in memory are not those of the object's digest"};
    }
    return view;
  }

  ClientHandler handler_;
  ClientCore core_;
};

}  // namespace

Status ClientCore::usable() const {
  if (closed) return {Code::kCancelled, "this store is closed"};
  if (!forked()) return {};
  return {Code::kUnsupported, "this store belongs to the process that forked this one; open one here"};
}

Result<std::shared_ptr<Home>> ClientCore::home(Deadline deadline) {
  KVF_RETURN_IF_ERROR(usable());
  std::unique_lock lock(mutex);
  if (!attached.wait_until(lock, deadline, [this] { return closed || !attaching; })) {
    return {Code::kDeadlineExceeded, "the node" +
                                         (current ? " at " + current->connection()->peer->endpoint().to_string() : "") +
                                         " was lost, and another call was still attaching to it again when the time "
                                         "allowed was over; see `kvferry status`"};
  }
  KVF_RETURN_IF_ERROR(usable());  // it may have been closed meanwhile
  if (current && current->alive()) return current;
  if (Clock::now() < next_try) return last_failure;
  const std::shared_ptr<Home> before = current;
  attaching = true;
  lock.unlock();
  auto made = attach(before.get(), deadline);
  lock.lock();
  attaching = false;
  attached.notify_all();
  if (closed) return {Code::kCancelled, "this store is closed"};
  if (!made.ok()) {
    next_try = Clock::now() + kRetryHome;
    last_failure = made.status();
    return last_failure;
  }
  counters.reattached.fetch_add(1, std::memory_order_relaxed);
  current = std::move(*made);
  return current;
}

Result<std::shared_ptr<Home>> ClientCore::attach(const Home* before, Deadline deadline) {
  Endpoint where = endpoint;
  if (before != nullptr && options.find_node) {
    if (const auto moved = options.find_node()) where = *moved;
  }
  if (before != nullptr && where == endpoint && before->process().is_stopped()) {
    return {Code::kUnavailable, "the node at " + where.to_string() + ": " + before->process().advice()};
  }
  // A call whose node is lost must have time left for the others.
  const milliseconds patience = before != nullptr ? kAttachAgain : options.engine.connect_timeout;
  auto made = Home::attach(*links, where, options, before, std::min(deadline, Clock::now() + patience));
  if (!made.ok()) return made.status().with_context("the node at " + where.to_string() + what_it_did(made.status()));
  endpoint = where;
  return made;
}

Status ClientCore::home_status() const {
  KVF_RETURN_IF_ERROR(usable());
  const std::lock_guard lock(mutex);
  return current ? current->connection()->peer->status() : last_failure;
}

Result<std::unique_ptr<Store>> Store::open(const Endpoint& node, StoreOptions options) {
  if (options.tenant.size() > kMaxTenantBytes) {
    return {Code::kInvalidArgument, "a tenant has at most " + std::to_string(kMaxTenantBytes) + " bytes"};
  }
  auto client = std::make_unique<StoreClient>(std::move(options), node);
  KVF_RETURN_IF_ERROR(client->start());
  return std::unique_ptr<Store>(std::move(client));
}

Result<std::unique_ptr<Store>> Store::embedded(Node& node, StoreOptions options) {
  return open(node.endpoint(), std::move(options));
}

}  // namespace kvferry::store
