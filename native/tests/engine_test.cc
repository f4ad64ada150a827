#include <gtest/gtest.h>

#include "engine_fixture.h"

namespace kvferry::testing {
namespace {

TEST(Engine, ReadsAndWrites) {
  for (const char* transport : {"tcp", "shm"}) {
    auto a = make_engine(options_for({transport})), b = make_engine(options_for({transport}));
    Buffer near = register_buffer(*a, 1 << 20, 1), far = register_buffer(*b, 1 << 20, 2);
    auto peer = connect(*a, *b);
    ASSERT_TRUE(peer);
    ASSERT_EQ(peer->regions().size(), 1u);
    const std::vector<Piece> pieces{{near.region.key.id, far.region.key.id, 100, 5000, 70000},
                                    {near.region.key.id, far.region.key.id, 200000, 300000, 1}};
    ASSERT_OK(run(*a, peer, pieces, Op::kRead));
    for (std::size_t i = 0; i < 70000; ++i) ASSERT_EQ(near.bytes[100 + i], pattern(2, 5000 + i)) << i;
    EXPECT_EQ(near.bytes[99], pattern(1, 99));
    EXPECT_EQ(near.bytes[200000], pattern(2, 300000));
    ASSERT_OK(run(*a, peer, {{near.region.key.id, far.region.key.id, 500000, 600000, 100000}}, Op::kWrite));
    for (std::size_t i = 0; i < 100000; ++i) ASSERT_EQ(far.bytes[600000 + i], pattern(1, 500000 + i)) << i;
    EXPECT_EQ(peer->stats().transport, transport);
    a->close();
    b->close();
  }
}

}  // namespace
}  // namespace kvferry::testing
