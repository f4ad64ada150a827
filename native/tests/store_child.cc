// A process of the store, to be killed. "store_child node DRAM_MIB SUSPECT_MS": a node; each line "VIEW MEMBER..." on
// its standard input, a member as ID,ENDPOINT,HOST, are the members from then on, and is answered with one.
// "store_child writer ENDPOINT KEY BYTES": a client on the node's host that reserves room for a put, writes half of it,
// and waits to be killed. Both end with their input.
#include <cstdio>
#include <iostream>
#include <sstream>

#include "store_cluster.h"

namespace kvferry::store::testing {
namespace {

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

std::optional<Member> parse_member(const std::string& text) {
  std::istringstream fields(text);
  std::string id, endpoint, host;
  if (!std::getline(fields, id, ',') || !std::getline(fields, endpoint, ',') || !std::getline(fields, host)) {
    return std::nullopt;
  }
  const auto node = NodeId::parse(id);
  const auto where = Endpoint::parse(endpoint);
  if (!node.ok() || !where.ok()) return std::nullopt;
  return Member{*node, *where, host, 0};
}

int run_node(const std::string& dram_mib, const std::string& suspect_ms) {
  NodeOptions options = node_options(std::stoull(dram_mib) << 20);
  options.suspect_after = milliseconds(std::stoll(suspect_ms));
  const auto node = make_node(options);
  if (!node) return 1;
  say(node->endpoint().to_string() + " " + node->node_id().to_string());
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::uint64_t view = 0;
    words >> view;
    std::vector<Member> members;
    for (std::string word; words >> word;) {
      if (auto member = parse_member(word)) members.push_back(*std::move(member));
    }
    node->set_members(view, std::move(members));
    say("told");
  }
  return 0;
}

int run_writer(const std::string& endpoint, const std::string& key, const std::string& bytes) {
  const auto rpc = RpcEndpoint::create({}, nullptr, {1});
  const auto where = Endpoint::parse(endpoint);
  if (!rpc.ok() || !where.ok()) return 1;
  const auto peer = (*rpc)->engine().connect(*where, {}, kPatience);
  if (!peer.ok()) return 2;
  const ProcessRef self = ProcessRef::self();
  Attach attach;
  attach.cluster = "local";
  attach.pid = static_cast<std::uint32_t>(self.pid);
  attach.process_start = self.start;
  attach.shared_memory = true;
  const auto attached = (*rpc)->call((*peer)->handle(), attach, deadline_in(kPatience));
  if (!attached.ok()) return 3;
  NewObject object = TestClient::object(key, "");
  object.bytes = std::stoull(bytes);
  const auto reserved = (*rpc)->call((*peer)->handle(), Reserve{{object}}, deadline_in(kPatience));
  if (!reserved.ok() || (*reserved)->results.at(0).places.empty()) return 4;
  const Place place = (*reserved)->results[0].places[0];
  const auto arena = (*peer)->map((*attached)->arenas.at(place.arena), kPatience);
  if (!arena.ok()) return 5;
  std::fill_n(arena->begin() + static_cast<std::ptrdiff_t>(place.offset), place.length / 2, std::byte{0xee});
  say(endpoint + " " + (*peer)->node_id().to_string());
  std::string line;
  std::getline(std::cin, line);
  return 0;
}

}  // namespace
}  // namespace kvferry::store::testing

int main(int argc, char** argv) {
  using namespace kvferry::store::testing;
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "node") return run_node(words[1], words[2]);
  if (words.size() == 4 && words[0] == "writer") return run_writer(words[1], words[2], words[3]);
  std::fputs("usage: store_child node DRAM_MIB SUSPECT_MS | writer ENDPOINT KEY BYTES\n", stderr);
  return 2;
}
