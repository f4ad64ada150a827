#include "store/replicator.h"

#include <algorithm>
#include <map>

namespace kvferry::store {
namespace {

Pull pull_of(const NodeId& source, std::span<const ObjectId> ids, const FetchOptions& options, Deadline deadline) {
  return {source, {ids.begin(), ids.end()}, options.extra, options.only_if_room, remaining(deadline)};
}

// For the member to answer that time ran out, rather than be cut off.
constexpr milliseconds kAnswerMargin{500};

}  // namespace

std::shared_ptr<MemberLink> Replicator::next_target(const ClusterView& view, const Wanting& object,
                                                    std::span<const NodeId> tried) const {
  const auto is_among = [](const NodeId& node, std::span<const NodeId> nodes) {
    return std::ranges::find(nodes, node) != nodes.end();
  };
  std::vector<std::string> hosts;
  for (const NodeId& holder : object.holders) {
    if (const auto link = view.find(holder)) hosts.push_back(link->member.host);
  }
  for (const auto& link : view.ranked(object.id)) {
    const NodeId& node = link->member.node_id;
    if (!link->is_up() || is_among(node, object.holders) || is_among(node, tried)) continue;
    if (std::ranges::find(hosts, link->member.host) == hosts.end()) return link;
  }
  return nullptr;
}

std::uint64_t Replicator::replicate(std::span<Wanting> objects, Deadline deadline) {
  std::uint64_t made = 0;
  std::vector<std::vector<NodeId>> tried(objects.size());
  for (;;) {
    const auto view = core_.cluster->view();
    struct Part {
      std::shared_ptr<MemberLink> target;
      std::vector<std::size_t> places;
    };
    std::map<std::pair<NodeId, NodeId>, Part> by_way;  // target, source
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (objects[i].holders.size() >= objects[i].wanted || expired(deadline)) continue;
      const auto target = next_target(*view, objects[i], tried[i]);
      const auto source = std::ranges::find_if(objects[i].holders, [&](const NodeId& node) {
        const auto link = view->find(node);
        return node == core_.self.node_id || (link && link->is_up());
      });
      if (!target || source == objects[i].holders.end()) continue;
      tried[i].push_back(target->member.node_id);
      Part& part = by_way[{target->member.node_id, *source}];
      part.target = target;
      part.places.push_back(i);
    }
    if (by_way.empty()) return made;
    for (const auto& [way, part] : by_way) {
      std::vector<ObjectId> ids;
      for (const std::size_t i : part.places) ids.push_back(objects[i].id);
      const auto done = send_to(part.target, way.second, ids, {}, deadline);
      for (std::size_t n = 0; n < ids.size(); ++n) {
        if (!done[n].ok()) continue;
        objects[part.places[n]].holders.push_back(way.first);
        ++made;
      }
    }
  }
}

std::vector<Status> Replicator::send_to(const std::shared_ptr<MemberLink>& target, const NodeId& source,
                                        std::span<const ObjectId> ids, const FetchOptions& options, Deadline deadline) {
  if (target->is_self) {
    const auto connection = fetcher_.connection_to(source);
    if (connection.ok()) return fetcher_.fetch(*connection, ids, options, deadline);
    return std::vector<Status>(ids.size(), connection.status());
  }
  std::vector<Status> out;
  for (std::size_t first = 0; first < ids.size(); first += kMaxObjects) {
    const auto part = ids.subspan(first, std::min(kMaxObjects, ids.size() - first));
    auto asked = core_.cluster->ask(target, pull_of(source, part, options, deadline),
                                    deadline_after(deadline, kAnswerMargin), true);
    auto answer = core_.cluster->answer(asked);
    if (answer.ok() && (*answer)->results.size() == part.size()) {
      out.insert(out.end(), (*answer)->results.begin(), (*answer)->results.end());
    } else {
      const Status why = answer.ok() ? Status(Code::kProtocolError, "an answer of another size") : answer.status();
      out.insert(out.end(), part.size(), why);
    }
  }
  return out;
}

}  // namespace kvferry::store
