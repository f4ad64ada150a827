// Service: one function per message.
#include <algorithm>

#include "base/log.h"
#include "store/service.h"

namespace kvferry::store {
namespace {

constexpr milliseconds kLongestPull{60000};
constexpr std::uint32_t kMostListed = 512;  // of objects with long keys fit a message

template <typename Answer, typename Message = Answer>
std::optional<Result<Answer>> wrap(std::optional<Answer> answer) {
  if (!answer) return std::nullopt;
  return Result<Answer>(*std::move(answer));
}

}  // namespace

// ---- sessions and members

Status Service::admit(const Attach& attach) const {
  const NodeOptions& options = core_.options;
  if (attach.cluster != options.cluster) {
    return {Code::kPermissionDenied,
            "this node is of cluster '" + options.cluster + "', the caller of cluster '" + attach.cluster + "'"};
  }
  if (attach.who != Attach::Who::kNode) return {};
  if (attach.home.is_nil()) return {Code::kInvalidArgument, "a node without an id"};
  if (attach.default_replicas == options.default_replicas) return {};
  return {Code::kPermissionDenied, "this node has default_replicas " + std::to_string(options.default_replicas) +
                                       ", the caller " + std::to_string(attach.default_replicas) +
                                       "; all nodes of a cluster must have the same"};
}

// It will tell anew all that it holds and this node owns: what was known of it may be out of date.
void Service::admit_node(const NodeId& node) {
  judge_quick_puts();
  core_.cluster->must_tell(node);
  core_.directory.drop_holder(core_.names.of(node));
  core_.cluster->expect(node);
}

Service::Answered<Attach> Service::on(const Asker& asker, const Attach& attach, Wait) {
  if (const Status admitted = admit(attach); !admitted.ok()) return admitted;
  const auto peer = core_.rpc->engine().peer(asker.peer);
  if (!peer || asker.peer == 0) return Status(Code::kPeerLost, "the connection is gone");
  if (attach.who == Attach::Who::kNode && peer->node_id() != attach.home) {
    return Status(Code::kPermissionDenied, "a node attaches as itself");
  }
  auto session = core_.sessions->attach(asker.peer, attach, peer->same_host());
  if (!session.ok()) return session.status();
  if (!peer->status().ok()) lost(asker.peer, peer->status());  // it was lost before the session was known
  if (attach.who == Attach::Who::kNode) admit_node(attach.home);
  const auto view = core_.cluster->view();
  Attach::Answer answer;
  answer.node = core_.self.node_id;
  answer.session = session->id;
  answer.page = session->page;
  answer.index = core_.index.key;
  answer.pins = core_.pins.key;
  for (const RegionInfo& arena : core_.arenas) answer.arenas.push_back(arena.key);
  answer.default_replicas = core_.options.default_replicas;
  answer.suspect_after = core_.options.suspect_after;
  answer.pin_lease = core_.options.pin_lease;
  answer.view = {view->number, view->members};
  return Result<Attach::Answer>(std::move(answer));
}

Service::Answered<Detach> Service::on(const Asker& asker, const Detach&, Wait) {
  if (const auto session = core_.sessions->detach(asker.peer)) puts_.end_session(session->id);
  return Result<None>(None{});
}

// Nodes learn the members from their own source. That one tells us means that we are new to it, or were away, or did
// not hear what it removed.
Service::Answered<MemberList> Service::on(const Asker& asker, const MemberList&, Wait) {
  if (asker.session && asker.session->who == Attach::Who::kNode) {
    const auto link = core_.cluster->view()->find(asker.session->home);
    core_.put_again.clear();
    if (link && link->is_up()) announcer_.member_up(link);
  }
  return Result<None>(None{});
}

Service::Answered<Members> Service::on(const Asker&, const Members&, Wait) {
  const auto view = core_.cluster->view();
  return Result<MemberList>(MemberList{view->number, view->members});
}

Service::Answered<Ping> Service::on(const Asker& asker, const Ping&, Wait) {
  if (asker.session && asker.session->who == Attach::Who::kNode) core_.cluster->expect(asker.session->home);
  const auto view = core_.cluster->view();
  const auto link = asker.session ? view->find(asker.session->home) : nullptr;
  const bool counts_on_it = link && link->is_up() && link->settled == view->fingerprint;
  return Result<Ping::Answer>(Ping::Answer{view->fingerprint, core_.is_settled(*view), counts_on_it});
}

// ---- puts and reads

Service::Answered<PutInline> Service::on(const Asker& asker, const PutInline& put, Wait wait) {
  return wrap<PutAnswer>(puts_.put_inline(asker.session->id, put, wait));
}

Service::Answered<Reserve> Service::on(const Asker& asker, const Reserve& reserve, Wait wait) {
  if (asker.peer != 0 && asker.session->page == kNoPage) {
    return Status(Code::kUnsupported, "only a client that has the node's memory mapped can write in place");
  }
  auto answer = puts_.reserve(asker.session->id, reserve.objects, wait);
  if (answer && !reserve.objects.empty() && asker.session->page != kNoPage) {
    core_.store->offer_quick_puts(asker.session->page, reserve.objects.back().bytes);
  }
  if (!answer || !wait || asker.peer == 0) return wrap<Reserve::Answer>(std::move(answer));
  // It may have left while it waited, too late for its session's end to find these.
  const auto now = core_.sessions->of(asker.peer);
  if (now && now->id == asker.session->id) return Result<Reserve::Answer>(*std::move(answer));
  Abort abort;
  for (const Reserve::Done& done : answer->results) {
    if (done.put != 0) abort.puts.push_back(done.put);
  }
  puts_.abort(asker.session->id, abort);
  return Status(Code::kPeerLost, "the connection is gone");
}

Service::Answered<Commit> Service::on(const Asker& asker, const Commit& commit, Wait wait) {
  return wrap<PutAnswer>(puts_.commit(asker.session->id, commit, wait));
}

Service::Answered<Abort> Service::on(const Asker& asker, const Abort& abort, Wait) {
  puts_.abort(asker.session->id, abort);
  return Result<None>(None{});
}

Service::Answered<PutFrom> Service::on(const Asker& asker, const PutFrom& put, Wait) {
  return Result<PutAnswer>(puts_.put_from(asker.session->id, asker.peer, put));
}

Service::Answered<Pin> Service::on(const Asker& asker, const Pin& pin, Wait wait) {
  return wrap<Pin::Answer>(reads_.pin(*asker.session, pin, wait));
}

Service::Answered<Unpin> Service::on(const Asker& asker, const Unpin& unpin, Wait) {
  return Result<Unpin::Answer>(reads_.unpin(*asker.session, unpin));
}

Service::Answered<Exists> Service::on(const Asker&, const Exists& exists, Wait wait) {
  return wrap<Exists::Answer>(reads_.exists(exists, wait));
}

Service::Answered<Match> Service::on(const Asker&, const Match& match, Wait wait) {
  return wrap<Match::Answer>(reads_.match(match, wait));
}

Service::Answered<Find> Service::on(const Asker&, const Find& find, Wait) {
  return Result<Find::Answer>(reads_.find(find));
}

// ---- between nodes

std::vector<Directory::Announced> Service::announced(const ClusterView& view, const Announce& announce) const {
  const bool put = announce.fresh || announce.put_again;
  std::vector<Directory::Announced> out;
  for (const Announce::Item& item : announce.items) {
    const bool alone = put && !core_.hears_all(view, item.id);
    out.push_back({item.id, item.digest, item.bytes, item.replicas, put, alone});
  }
  return out;
}

// Whether others have to be asked, or told that something was put again.
bool Service::takes_others(const ClusterView& view, const Announce& announce,
                           std::span<const Directory::Announced> objects) const {
  return std::ranges::any_of(objects, [&](const Directory::Announced& object) {
    return (announce.fresh && publisher_.needs_asking(view, object)) ||
           (object.fresh && core_.directory.is_removed(object.id));
  });
}

// Before the put is answered, if that may wait: what was put again must not be taken for removed when this node dies.
void Service::tell_put_again(const Announce::Answer& answer, Wait wait) {
  if (std::ranges::count(answer.results, Announce::Said::kTakenAgain, &Announce::Done::said) == 0) return;
  if (wait) {
    removals_.tell();
  } else {
    removals_.tell_soon();
  }
}

Service::Answered<Announce> Service::on(const Asker& asker, const Announce& announce, Wait wait) {
  const NodeId& holder = asker.session->home;
  // A put must not fail because of what this node would not have any more, had it not stood still.
  if (announce.fresh && !await_pulse(wait)) {
    if (!wait) return std::nullopt;
    return not_trusted();
  }
  const auto view = core_.cluster->view();
  const std::vector<Directory::Announced> objects = announced(*view, announce);
  if (!wait && takes_others(*view, announce, objects)) return std::nullopt;
  std::vector<bool> conflicts(objects.size(), false);
  if (wait && announce.fresh) {
    conflicts = publisher_.find_conflicts(*view, objects, holder, deadline_in(core_.cluster->patience()));
  }
  if (announce.settled_view == Announce::kTellsAll) core_.directory.kept().forget_of(holder);
  Announce::Answer answer;
  const HolderIndex index = core_.names.of(holder);
  for (std::size_t i = 0; i < objects.size(); ++i) {
    Announce::Done& done = answer.results.emplace_back();
    done.said = Announce::Said::kConflict;
    if (!conflicts[i]) done = enter(objects[i], index, announce.fresh);
  }
  tell_put_again(answer, wait);
  if (announce.settled_view == 0) return Result<Announce::Answer>(std::move(answer));
  core_.cluster->set_settled(holder, announce.settled_view);
  caretaker_.wake();
  return Result<Announce::Answer>(std::move(answer));
}

Announce::Done Service::enter(const Directory::Announced& object, HolderIndex holder, bool fresh) {
  if (!fresh) yield_to(object);
  const auto said = core_.directory.announce(object, holder);
  Announce::Done done;
  const Announce::Said taken = said.again ? Announce::Said::kTakenAgain : Announce::Said::kTaken;
  done.said = said.added == Directory::Added::kTaken     ? taken
              : said.added == Directory::Added::kRemoved ? Announce::Said::kRemoved
                                                         : Announce::Said::kConflict;
  const std::uint32_t own = core_.store->find(object.id) ? 1 : 0;
  done.holders = static_cast<std::uint8_t>(std::min<std::uint32_t>(said.holders + own, UINT8_MAX));
  return done;
}

// What the others agreed on while this node stood still comes before what it had before.
void Service::yield_to(const Directory::Announced& object) {
  if (core_.pulse.vouches()) return;
  const auto own = core_.store->find(object.id);
  if (!own || own->digest == object.digest) return;
  (void)core_.store->remove(object.id);
  core_.counters.add(NodeCounters::kDroppedConflicts);
}

Service::Answered<Retract> Service::on(const Asker& asker, const Retract& retract, Wait) {
  if (const auto index = core_.names.known(asker.session->home)) {
    for (const ObjectId& id : retract.ids) core_.directory.retract(id, *index);
  }
  return Result<None>(None{});
}

Service::Answered<Pull> Service::on(const Asker& asker, const Pull& pull, Wait wait) {
  if (!wait) return std::nullopt;
  if (core_.draining && asker.session->who == Attach::Who::kNode) {
    return Status(Code::kUnavailable, "the node is being drained");
  }
  const Deadline deadline = deadline_in(std::min(pull.timeout, kLongestPull));
  const FetchOptions options{pull.extra, pull.only_if_room};
  if (pull.source.is_nil()) return Result<Statuses>(Statuses{fetcher_.fetch_anywhere(pull.ids, options, deadline)});
  const auto connection = fetcher_.connection_to(pull.source);
  if (!connection.ok()) return connection.status();
  return Result<Statuses>(Statuses{fetcher_.fetch(*connection, pull.ids, options, deadline)});
}

// ---- of clients and administrators

Service::Answered<Prefetch> Service::on(const Asker&, const Prefetch& prefetch, Wait) {
  std::vector<ObjectId> here, elsewhere;
  for (const ObjectId& id : prefetch.ids) (core_.store->find(id) ? here : elsewhere).push_back(id);
  core_.store->prefetch(here);
  if (!elsewhere.empty()) {
    const Deadline deadline = deadline_in(prefetch.within);
    caretaker_.push([this, ids = std::move(elsewhere), deadline] {
      if (!expired(deadline)) (void)fetcher_.fetch_anywhere(ids, {}, deadline);
    });
  }
  return Result<None>(None{});
}

Service::Answered<List> Service::on(const Asker&, const List& list, Wait wait) {
  if (!wait) return std::nullopt;
  List::Answer answer;
  const std::uint32_t limit = std::min(list.limit, kMostListed);
  answer.objects = core_.store->list(list.tenant, list.prefix, list.after, limit);
  answer.more = list.limit > limit && answer.objects.size() == limit;
  // Keys and tags may be long: what does not fit is asked for again.
  constexpr std::uint64_t kRoom = 900u << 10;
  std::uint64_t bytes = 0;
  std::size_t fit = 0;
  for (const ObjectInfo& object : answer.objects) {
    bytes += 64 + object.key.size() + object.tenant.size();
    for (const std::string& tag : object.tags) bytes += tag.size() + 2;
    if (bytes > kRoom) break;
    ++fit;
  }
  answer.more = answer.more || fit < answer.objects.size();
  answer.objects.resize(fit);
  return Result<List::Answer>(std::move(answer));
}

Service::Answered<WithTag> Service::on(const Asker&, const WithTag& with_tag, Wait wait) {
  if (!wait) return std::nullopt;
  WithTag::Answer answer;
  answer.ids = core_.store->with_tag(with_tag.tenant, with_tag.tag);
  std::ranges::sort(answer.ids);
  if (!with_tag.after.is_nil()) {
    answer.ids.erase(answer.ids.begin(), std::ranges::upper_bound(answer.ids, with_tag.after));
  }
  answer.more = answer.ids.size() > kMaxIds;
  answer.ids.resize(std::min(answer.ids.size(), kMaxIds));
  return Result<WithTag::Answer>(std::move(answer));
}

Service::Answered<Stats> Service::on(const Asker&, const Stats&, Wait wait) {
  if (!wait) return std::nullopt;
  return Result<NodeStats>(stats());
}

Service::Answered<Drain> Service::on(const Asker&, const Drain& drain_request, Wait wait) {
  if (!wait) return std::nullopt;
  return Result<Drain::Answer>(Drain::Answer{drain(deadline_in(drain_request.timeout))});
}

NodeStats Service::stats() const {
  settle_quick_puts();
  NodeStats stats = core_.store->stats();
  stats.directory_entries = core_.directory.entries();
  stats.clients = core_.sessions->count();
  stats.metadata_bytes += core_.directory.memory_bytes() + core_.dropped.memory_bytes();
  core_.counters.snapshot(&stats.counters);
  stats.counters["malformed_messages_total"] = core_.rpc->malformed();
  stats.counters["refused_requests_total"] = core_.rpc->refused();
  for (std::string& why : core_.cluster->refusals()) stats.degraded.push_back(std::move(why));
  const auto view = core_.cluster->view();
  for (const auto& link : view->links) {
    if (!link->is_up()) stats.degraded.push_back("member " + link->member.node_id.to_string() + " does not answer");
  }
  if (!core_.pulse.vouches()) stats.degraded.push_back(not_trusted().message());
  if (core_.draining) stats.degraded.push_back("draining");
  return stats;
}

}  // namespace kvferry::store
