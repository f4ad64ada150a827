#include "store/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "json.h"

namespace kvferry::store {
namespace {

NodeId node_of(const std::string& hex) {
  const Result<NodeId> id = NodeId::parse(hex);
  EXPECT_TRUE(id.ok()) << hex;
  return id.ok() ? id.value() : NodeId{};
}

ObjectId object_of(const std::string& hex) {
  return {std::stoull(hex.substr(0, 16), nullptr, 16), std::stoull(hex.substr(16), nullptr, 16)};
}

std::vector<NodeId> some_nodes(int count) {
  std::vector<NodeId> nodes;
  for (int i = 0; i < count; ++i) nodes.push_back(NodeId::random());
  return nodes;
}

std::vector<ObjectId> some_objects(int count) {
  std::vector<ObjectId> objects;
  for (int i = 0; i < count; ++i) objects.push_back(ObjectIds("").of(std::to_string(i)));
  return objects;
}

TEST(Rendezvous, AgreesWithThePublishedVectors) {
  const Json vectors = read_json(KVFERRY_RENDEZVOUS_VECTORS).at("vectors");
  ASSERT_EQ(vectors.items.size(), 5U);
  for (const Json& vector : vectors.items) {
    const ObjectId object = object_of(vector.at("object").text);
    std::vector<NodeId> nodes;
    for (const Json& scored : vector.at("nodes").items) {
      nodes.push_back(node_of(scored.at("id").text));
      std::array<char, 17> score{};
      std::snprintf(score.data(), score.size(), "%016llx",
                    static_cast<unsigned long long>(rendezvous_score(object, nodes.back())));
      EXPECT_EQ(score.data(), scored.at("score").text);
    }
    const auto owner = rendezvous_owner(object, nodes);
    ASSERT_TRUE(owner.has_value());
    EXPECT_EQ(nodes[*owner].to_string(), vector.at("owner").text);
  }
}

TEST(Rendezvous, HasNoOwnerWithoutNodes) { EXPECT_FALSE(rendezvous_owner({1, 2}, {}).has_value()); }

TEST(Rendezvous, DoesNotDependOnTheOrderOfNodes) {
  std::vector<NodeId> nodes = some_nodes(7), reversed = nodes;
  std::ranges::reverse(reversed);
  for (const ObjectId& object : some_objects(500)) {
    EXPECT_EQ(nodes[*rendezvous_owner(object, nodes)], reversed[*rendezvous_owner(object, reversed)]);
  }
}

TEST(Rendezvous, MovesOnlyTheShareOfANodeThatLeaves) {
  const std::vector<NodeId> nodes = some_nodes(5);
  const std::vector<NodeId> fewer(nodes.begin(), nodes.end() - 1);
  int moved = 0;
  for (const ObjectId& object : some_objects(5000)) {
    const NodeId before = nodes[*rendezvous_owner(object, nodes)];
    const NodeId after = fewer[*rendezvous_owner(object, fewer)];
    if (before == nodes.back()) {
      ++moved;
    } else {
      EXPECT_EQ(before, after);
    }
  }
  EXPECT_GT(moved, 0);
}

TEST(Rendezvous, SpreadsObjectsEvenly) {
  const std::vector<NodeId> nodes = some_nodes(8);
  std::map<std::size_t, int> shares;
  for (const ObjectId& object : some_objects(16'000)) ++shares[*rendezvous_owner(object, nodes)];
  ASSERT_EQ(shares.size(), nodes.size());
  for (const auto& [node, share] : shares) {  // 2000 each, and a deviation of 42: ten of them allowed
    EXPECT_NEAR(share, 2000, 420) << nodes[node].to_string();
  }
}

}  // namespace
}  // namespace kvferry::store
