#include "store/service.h"

#include <algorithm>

#include "base/log.h"

namespace kvferry::store {
namespace {

constexpr std::uint64_t kInlineBudget = 768u << 10;  // of values in one answer
constexpr std::size_t kMostForgotten = 1024;         // members that left and may come back

enum Pools : std::size_t { kLocal = 0, kFetch = 1, kWork = 2, kRoom = 3, kLong = 4 };

}  // namespace

Service::Service(NodeCore& core)
    : core_(core),
      finder_(core),
      removals_(core),
      announcer_(core, removals_),
      publisher_(core, finder_, announcer_, removals_),
      fetcher_(core, finder_, publisher_),
      replicator_(core, fetcher_),
      puts_(core, publisher_, fetcher_, replicator_),
      reads_(core, finder_, [this](const ObjectId& id, const NodeId& reader) { make_hot(id, reader); }),
      caretaker_(core, replicator_, announcer_) {}

Status Service::start() {
  core_.store->on_dropped([this](std::span<const ObjectId> ids) { announcer_.tell({ids.begin(), ids.end()}); });
  if (core_.options.demote_to_remote) {
    core_.store->on_demote([this](const ObjectId& id) { return caretaker_.demote(id); });
  }
  KVF_RETURN_IF_ERROR(removals_.start());
  KVF_RETURN_IF_ERROR(announcer_.start());
  KVF_RETURN_IF_ERROR(caretaker_.start());
  judge_quick_puts();
  return {};
}

void Service::close() {
  caretaker_.close();
  announcer_.close();
  removals_.close();
}

// The pools and what their requests wait for: kLocal for this node's disk and for quick answers; kFetch for kLocal of
// others; kWork and kRoom for kFetch of others; kLong for all. Whatever waits for room in memory does so in kRoom
// alone, so that a disk that does not keep up with puts holds up neither reads nor commits.
std::size_t Service::pool(Type type) const {
  switch (type) {
    case Type::kPull:
      return kFetch;
    case Type::kCommit:
    case Type::kRemove:
      return kWork;
    case Type::kReserve:
    case Type::kPutInline:
    case Type::kPutFrom:
      return kRoom;
    case Type::kDrain:
      return kLong;
    default:
      return kLocal;
  }
}

void Service::lost(std::uint64_t peer, const Status&) {
  if (!core_.ready) return;
  core_.cluster->lost(peer);
  const auto session = core_.sessions->lost(peer);
  if (!session) return;
  puts_.end_session(session->id);
  if (session->who != Attach::Who::kNode) return;
  judge_quick_puts();
  if (session->by_us) return;
  core_.cluster->closed_by(session->home);
  // What it would have told us it may have told another: only it knows. If it is back already, it tells all anyway.
  if (core_.sessions->made_by(session->home).empty()) core_.cluster->must_tell(session->home);
}

Status Service::may_ask(const Asker& asker, Type type) {
  const bool open = type == Type::kAttach || type == Type::kPing || type == Type::kMembers || type == Type::kStats ||
                    type == Type::kMemberList;
  if (open) return {};
  if (!asker.session) return {Code::kPermissionDenied, "attach first"};
  const bool node_only =
      type == Type::kAnnounce || type == Type::kRetract || type == Type::kDrop || type == Type::kRemoved;
  if (node_only && asker.session->who != Attach::Who::kNode) {
    return {Code::kPermissionDenied, std::string(type_name(type)) + " is for nodes"};
  }
  return {};
}

Result<std::optional<Bytes>> Service::quick(const Request& request) {
  if (!core_.ready) {
    return std::optional<Bytes>(encode_refusal(request.header, {Code::kUnavailable, "the node is just starting"}));
  }
  return dispatch({request.peer, core_.sessions->of(request.peer)}, request.header, request.body, false);
}

Result<Bytes> Service::handle(const Request& request) {
  KVF_ASSIGN_OR_RETURN(auto done,
                       dispatch({request.peer, core_.sessions->of(request.peer)}, request.header, request.body, true));
  if (done) return *std::move(done);
  return encode_refusal(request.header, {Code::kInternal, "not answered"});
}

Result<Bytes> Service::serve(const SessionInfo& who, ByteView request) {
  KVF_ASSIGN_OR_RETURN(const MessageHeader header, decode_header(request));
  KVF_ASSIGN_OR_RETURN(auto done, dispatch({0, who}, header, request, true));
  if (done) return *std::move(done);
  return encode_refusal(header, {Code::kInternal, "not answered"});
}

template <typename Message>
Result<std::optional<Bytes>> Service::run(const Asker& asker, const MessageHeader& header, ByteView body, bool wait) {
  KVF_ASSIGN_OR_RETURN(const Message message, decode_request<Message>(body));
  const Answered<Message> answer = on(asker, message, wait);
  if (!answer) return std::optional<Bytes>();
  if (header.request_id == 0) return std::optional<Bytes>(Bytes());
  return std::optional<Bytes>(encode_answer<Message>(header.request_id, *answer));
}

Service::Speaks Service::speaks(Type type) {
  switch (type) {
    case Type::kLookup:
    case Type::kExists:
    case Type::kMatch:
    case Type::kFind:
    case Type::kGetInline:
    case Type::kPin:
      return Speaks::kInAnswer;
    case Type::kReserve:
    case Type::kPutInline:
    case Type::kPutFrom:
    case Type::kPull:
      return Speaks::kBefore;
    default:
      return Speaks::kNot;
  }
}

Status Service::not_trusted() {
  return {Code::kUnavailable,
          "the node stood still, or was given up, and is asking the others what was removed meanwhile"};
}

bool Service::await_pulse(bool wait) {
  return core_.pulse.vouches() || (wait && core_.pulse.await(deadline_in(core_.options.suspect_after / 2)));
}

// Looks at the pulse after the answer was made, too: the node may have stood still in the middle of it.
Result<std::optional<Bytes>> Service::dispatch(const Asker& asker, const MessageHeader& header, ByteView body,
                                               bool wait) {
  settle_quick_puts();
  if (some_silent_.load(std::memory_order_relaxed)) heard_of(asker.peer);
  if (const Status may = may_ask(asker, header.type); !may.ok()) {
    return std::optional<Bytes>(encode_refusal(header, may));
  }
  if (header.type == Type::kPutFrom && !wait) return std::optional<Bytes>();  // always waits: not decoded twice
  // What a node that is drained still holds goes to other nodes, whose owners say what was removed meanwhile.
  const bool moves_away = core_.draining && asker.session && asker.session->who == Attach::Who::kNode;
  const Speaks of_own = moves_away ? Speaks::kNot : speaks(header.type);
  if (of_own != Speaks::kNot && !await_pulse(wait)) {
    return wait ? std::optional<Bytes>(encode_refusal(header, not_trusted())) : std::nullopt;
  }
  auto done = answer(asker, header, body, wait);
  const bool told = done.ok() && *done;
  if (!told || of_own != Speaks::kInAnswer || core_.pulse.vouches()) return done;
  return std::optional<Bytes>(encode_refusal(header, not_trusted()));  // pins that were made end with their lease
}

Result<std::optional<Bytes>> Service::answer(const Asker& asker, const MessageHeader& header, ByteView body,
                                             bool wait) {
  switch (header.type) {
#define KVF_RUN(Message) \
  case Message::kType:   \
    return run<Message>(asker, header, body, wait);
    KVF_RUN(Attach)
    KVF_RUN(Detach)
    KVF_RUN(MemberList)
    KVF_RUN(Members)
    KVF_RUN(Ping)
    KVF_RUN(PutInline)
    KVF_RUN(Reserve)
    KVF_RUN(Commit)
    KVF_RUN(Abort)
    KVF_RUN(PutFrom)
    KVF_RUN(Pin)
    KVF_RUN(Unpin)
    KVF_RUN(Exists)
    KVF_RUN(Match)
    KVF_RUN(Find)
    KVF_RUN(Announce)
    KVF_RUN(Retract)
    KVF_RUN(Remove)
    KVF_RUN(Drop)
    KVF_RUN(Removed)
    KVF_RUN(Pull)
    KVF_RUN(Prefetch)
    KVF_RUN(List)
    KVF_RUN(WithTag)
    KVF_RUN(Stats)
    KVF_RUN(Drain)
#undef KVF_RUN
    case Type::kGetInline:
      return get_inline(asker, header, body, wait);
    case Type::kLookup:
      return lookup(asker, header, body, wait);
  }
  return Status(Code::kProtocolError, "unknown type");
}

Result<std::optional<Bytes>> Service::get_inline(const Asker& asker, const MessageHeader& header, ByteView body,
                                                 bool wait) {
  KVF_ASSIGN_OR_RETURN(const GetInline message, decode_request<GetInline>(body));
  InlineValues values(core_, kInlineBudget);
  auto answer = reads_.get_inline(*asker.session, message, values, wait);
  if (!answer) return std::optional<Bytes>();
  return std::optional<Bytes>(encode_answer<GetInline>(header.request_id, *std::move(answer)));
}

Result<std::optional<Bytes>> Service::lookup(const Asker& asker, const MessageHeader& header, ByteView body,
                                             bool wait) {
  KVF_ASSIGN_OR_RETURN(const Lookup message, decode_request<Lookup>(body));
  InlineValues values(core_, kInlineBudget - message.ids.size() * 48);
  auto answer = reads_.lookup(*asker.session, message, values, wait);
  if (!answer) return std::optional<Bytes>();
  return std::optional<Bytes>(encode_answer<Lookup>(header.request_id, *std::move(answer)));
}

void Service::settle_quick_puts() const {
  if (!core_.store->quick_puts_waiting()) return;
  const LocalStore::QuickPutsDone done = core_.store->settle_quick_puts();
  core_.counters.add(NodeCounters::kPuts, done.ids.size());
  core_.counters.add(NodeCounters::kPutBytes, done.bytes);
  core_.directory.put_again(done.ids);
}

// Clients may put without a message while no other node has a say in what is put, or would have to hear of it, and
// there is nothing to be done about it but to take it in.
void Service::judge_quick_puts() {
  const std::lock_guard lock(quick_mutex_);
  const auto view = core_.cluster->view();
  const bool alone = view->members.size() == 1 && view->has_self && core_.sessions->nodes() == 0;
  core_.pulse.set_alone(alone && !members_change_);
  const bool through = !core_.options.ssd_directory.empty() && core_.options.ssd_write == WriteMode::kWriteThrough;
  core_.store->allow_quick_puts(alone && !through && !members_change_ && !core_.draining);
}

std::uint64_t Service::drain(Deadline deadline) {
  core_.draining = true;
  judge_quick_puts();
  settle_quick_puts();
  return caretaker_.drain(deadline);
}

bool Service::set_members(std::uint64_t number, std::vector<Member> members) {
  const std::lock_guard one_at_a_time(core_.members_mutex);
  const auto changing = [this](bool now) {
    {
      const std::lock_guard lock(quick_mutex_);
      members_change_ = now;
    }
    judge_quick_puts();
  };
  changing(true);
  settle_quick_puts();
  const bool taken = take_members(number, std::move(members));
  changing(false);
  return taken;
}

// With core_.members_mutex.
bool Service::take_members(std::uint64_t number, std::vector<Member> members) {
  auto before = core_.cluster->view();
  if (number > before->number || before->number == 0) {
    removals_.inherit(members);
    const bool joins =
        std::ranges::any_of(members, [&](const Member& one) { return before->find(one.node_id) == nullptr; });
    if (joins || members.size() != before->links.size()) announcer_.view_will_change(*before, members);
  }
  if (!core_.cluster->set_members(number, std::move(members))) return false;
  const auto now = core_.cluster->view();
  for (const auto& link : before->links) {
    if (link->is_self || now->find(link->member.node_id)) continue;
    if (const auto index = core_.names.known(link->member.node_id)) core_.directory.drop_holder(*index);
    if (forgotten_.size() >= kMostForgotten) forgotten_.erase(forgotten_.begin());
    forgotten_.insert(link->member.node_id);
  }
  for (const auto& link : now->links) {
    // What it holds was forgotten when it left, and it may not know that it ever did.
    if (forgotten_.erase(link->member.node_id) > 0) caretaker_.ask_for_all(link->member.node_id);
  }
  announcer_.view_changed(std::move(before));
  caretaker_.wake();
  return true;
}

void Service::attaching(std::uint64_t handle, const NodeId& node) { core_.sessions->adopt(handle, node); }

void Service::member_up(const std::shared_ptr<MemberLink>& link) {
  announcer_.member_up(link);
  caretaker_.wake();
}

void Service::stood_still() {
  core_.put_again.clear();  // what was removed meanwhile may be among it
  core_.cluster->wake();
}

// What it gave this node to keep may have been put again without its word.
void Service::missed(const NodeId& member) { core_.directory.kept().forget_of(member); }

void Service::make_hot(const ObjectId& id, const NodeId& reader) {
  caretaker_.push([this, id, reader] {
    constexpr milliseconds kHotTimeout{10000};
    const auto link = core_.cluster->view()->find(reader);
    if (!link || link->is_self || !link->is_up()) return;
    FetchOptions options;
    options.extra = true;
    const auto done = replicator_.send_to(link, core_.self.node_id, {&id, 1}, options, deadline_in(kHotTimeout));
    if (done[0].ok()) core_.counters.add(NodeCounters::kHotReplicas);
  });
}

}  // namespace kvferry::store
