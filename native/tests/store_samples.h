// One of each message of the store, with every field set: for the tests of the format and the seeds of its fuzzer.
#pragma once

#include "store/messages.h"

namespace kvferry::store::testing {

inline NodeId sample_node(std::uint8_t byte) {
  NodeId node;
  node.bytes.fill(byte);
  return node;
}

inline NewObject sample_object() {
  NewObject object;
  object.id = {1, 2};
  object.key = "key";
  object.tenant = "tenant";
  object.bytes = 3;
  object.replicas = 2;
  object.expires_in = milliseconds(1500);
  object.tags = {"a", "b"};
  object.parent = {3, 4};
  object.depth = 5;
  object.extra = true;
  return object;
}

inline MemberList sample_view() {
  return {9, {Member{sample_node(1), *Endpoint::parse("127.0.0.1:4000"), "host", 1u << 30}}};
}

// visit(request, answer) for each.
template <typename Visit>
void for_each_sample(Visit&& visit) {
  static const std::string value_text = "abc";
  const ByteView value = as_byte_view(value_text);
  const ContentDigest digest{5, 6};
  const ObjectId id{1, 2}, other{3, 4};
  const Held held{3, digest, Tier::kSsd, 2};
  const PutAnswer put{{{{}, true, 2}, {Status(Code::kConflict, "other bytes"), false, 0}}};
  Attach attach;
  attach.cluster = "local";
  attach.who = Attach::Who::kNode;
  attach.home = sample_node(2);
  attach.pid = 7;
  attach.shared_memory = true;
  Attach::Answer attached;
  attached.node = sample_node(1);
  attached.session = 4;
  attached.page = 1;
  attached.index = {1, 1};
  attached.pins = {2, 1};
  attached.arenas = {{3, 1}, {4, 1}};
  attached.view = sample_view();
  NodeStats stats;
  stats.objects = 3;
  stats.counters = {{"a_total", 1}, {"b_total", 2}};
  stats.degraded = {"ssd: full"};
  ObjectInfo info;
  info.key = "key";
  info.tenant = "tenant";
  info.tags = {"a"};
  info.expires_in = milliseconds(3);

  visit(attach, Result<Attach::Answer>(attached));
  visit(Detach{}, Result<None>(None{}));
  visit(sample_view(), Result<None>(None{}));
  visit(Members{}, Result<MemberList>(sample_view()));
  visit(Ping{}, Result<Ping::Answer>(Ping::Answer{9, true, true}));
  visit(PutInline{{{sample_object(), digest, value}}}, Result<PutAnswer>(put));
  visit(Reserve{{sample_object()}},
        Result<Reserve::Answer>(Reserve::Answer{{{{}, held, 0, {}}, {{}, std::nullopt, 8, {{0, 64, 3}}}}}));
  visit(Commit{{{8, digest}}}, Result<PutAnswer>(put));
  visit(Abort{{8}}, Result<None>(None{}));
  visit(PutFrom{{{sample_object(), {{{1, 1}, 0, 3}}, digest}}}, Result<PutAnswer>(put));
  visit(GetInline{{{id, 1, 2}}}, Result<GetInline::Answer>(GetInline::Answer{{{{}, held, value}}}));
  visit(Pin{{id}, true},
        Result<Pin::Answer>(Pin::Answer{{{{}, 3, held, {{{3, 1}, 64, 3}}, sample_object()},
                                         {Status(Code::kNotFound, "absent"), 0, {}, {}, std::nullopt}}}));
  visit(Unpin{{3}}, Result<Unpin::Answer>(Unpin::Answer{{true, false}}));
  visit(Lookup{{id, other}, 4096},
        Result<Lookup::Answer>(Lookup::Answer{9, {sample_node(1)}, {{true, 3, digest, {0}, true, value}, {}}}));
  visit(Exists{{id}}, Result<Exists::Answer>(Exists::Answer{9, {true}}));
  visit(Match{{id, other}}, Result<Match::Answer>(Match::Answer{9, 1}));
  visit(Find{{id, other}}, Result<Find::Answer>(Find::Answer{{{held, true}, {std::nullopt, false}}}));
  visit(Announce{true, 9, {{id, digest, 3, 2}}, true},
        Result<Announce::Answer>(Announce::Answer{{{Announce::Said::kConflict, 1}}}));
  visit(Retract{{id}}, Result<None>(None{}));
  visit(Remove{{id}}, Result<Statuses>(Statuses{{Status(), Status(Code::kUnavailable, "node x")}}));
  visit(Drop{{id}}, Result<None>(None{}));
  visit(Removed{Removed::To::kOwner, {{id, milliseconds(7), true}}}, Result<None>(None{}));
  visit(Pull{sample_node(2), {id}, true, true, milliseconds(7)}, Result<Statuses>(Statuses{{Status()}}));
  visit(Prefetch{{id}, milliseconds(7)}, Result<None>(None{}));
  visit(List{"tenant", "k", "a", 10}, Result<List::Answer>(List::Answer{{info}, true}));
  visit(WithTag{"tenant", "tag", other}, Result<WithTag::Answer>(WithTag::Answer{{id}, true}));
  visit(Stats{}, Result<NodeStats>(stats));
  visit(Drain{milliseconds(7)}, Result<Drain::Answer>(Drain::Answer{2}));
}

}  // namespace kvferry::store::testing
