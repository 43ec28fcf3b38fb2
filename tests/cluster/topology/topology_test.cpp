#include <annulus/cluster/topology/topology.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/error_text.hpp"

namespace annulus {
namespace {

using testing::HasSubstr;

TEST(Topology, DefaultIsOneRankOnOneNode) {
  const Topology topology;
  EXPECT_EQ(topology.ranks(), 1);
  EXPECT_EQ(topology.nodes(), 1);
  EXPECT_EQ(topology.node(0), 0);
  EXPECT_EQ(topology.local_rank(0), 0);
  EXPECT_EQ(topology, Topology::uniform(1, 1));
}

TEST(Topology, UniformFillsNodeAfterNode) {
  for (int ranks = 1; ranks <= 20; ++ranks) {
    for (int per_node = 1; per_node <= 22; ++per_node) {
      const Topology topology = Topology::uniform(ranks, per_node);
      ASSERT_EQ(topology.ranks(), ranks);
      ASSERT_EQ(topology.nodes(), (ranks + per_node - 1) / per_node);
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(topology.node(rank), rank / per_node);
        ASSERT_EQ(topology.local_rank(rank), rank % per_node);
        ASSERT_EQ(topology.first_rank(topology.node(rank)), rank / per_node * per_node);
      }
      for (int node = 0; node < topology.nodes(); ++node)
        ASSERT_EQ(topology.ranks_on(node), std::min(per_node, ranks - node * per_node));
      ASSERT_EQ(topology.is_uniform(), ranks <= per_node || ranks % per_node == 0);
    }
  }
}

TEST(Topology, ListGivesEachNodeItsRanks) {
  const Topology topology({3, 1, 4});
  EXPECT_EQ(topology.ranks(), 8);
  EXPECT_EQ(topology.nodes(), 3);
  const std::vector<int> nodes{0, 0, 0, 1, 2, 2, 2, 2}, locals{0, 1, 2, 0, 0, 1, 2, 3};
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(topology.node(rank), nodes[rank]);
    EXPECT_EQ(topology.local_rank(rank), locals[rank]);
  }
  EXPECT_EQ(topology.ranks_on(0), 3);
  EXPECT_EQ(topology.ranks_on(1), 1);
  EXPECT_EQ(topology.ranks_on(2), 4);
  EXPECT_TRUE(topology.same_node(4, 7));
  EXPECT_FALSE(topology.same_node(2, 3));
  EXPECT_FALSE(topology.is_uniform());
  EXPECT_EQ(Topology({2, 6, 1}).most_ranks_on_a_node(), 6);
}

TEST(Topology, ComparesByWhereRanksSit) {
  EXPECT_EQ(Topology({2, 2, 1}), Topology::uniform(5, 2));
  EXPECT_NE(Topology({2, 1, 2}), Topology::uniform(5, 2));
  EXPECT_NE(Topology::uniform(4, 2), Topology::uniform(4, 4));
}

TEST(Topology, ReadsWell) {
  EXPECT_EQ(Topology::uniform(8, 4).to_string(), "2 nodes × 4 ranks");
  EXPECT_EQ(Topology().to_string(), "1 node × 1 rank");
  EXPECT_EQ(Topology({4, 4, 2}).to_string(), "3 nodes of 4, 4, 2 ranks");
}

TEST(Topology, ErrorsNameNodeAndRemedy) {
  EXPECT_THAT(error_text([] { Topology({4, 0, 2}); }), HasSubstr("node 1 has 0 ranks"));
  EXPECT_THAT(error_text([] { Topology({-3}); }), HasSubstr("node 0 has -3 ranks"));
  EXPECT_THAT(error_text([] { Topology(std::vector<int>{}); }), HasSubstr("list of nodes is empty"));
  EXPECT_THAT(error_text([] { Topology::uniform(0, 4); }), HasSubstr("0 ranks: at least one"));
  EXPECT_THAT(error_text([] { Topology::uniform(4, 0); }), HasSubstr("0 ranks per node: give at least one"));
  EXPECT_THAT(error_text([] { Topology::uniform(1'000'000, 8); }), HasSubstr("1000000 ranks: at most"));
  EXPECT_THAT(error_text([] {
                Topology({2'000'000'000, 2'000'000'000});
              }),
              HasSubstr("4000000000 ranks: at most"));
}

}  // namespace
}  // namespace annulus
