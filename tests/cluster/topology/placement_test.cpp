#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/topology/job.hpp"
#include "support/error_text.hpp"

namespace annulus {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Job four_nodes(std::vector<int> node_of_rank) {
  return {.source = "test",
          .hosts = {"n1", "n2", "n3", "n4"},
          .node_of_rank = std::move(node_of_rank),
          .leaves = {}};
}

const std::vector<LeafSwitch> crossed = {{.name = "a", .path = "top.a", .hosts = {"n1", "n3"}},
                                         {.name = "b", .path = "top.b", .hosts = {"n2", "n4"}}};

TEST(Placement, ConsecutiveRanksOnEqualNodesAreFine) {
  EXPECT_THAT(check_placement(four_nodes({0, 0, 1, 1, 2, 2, 3, 3})), IsEmpty());
  EXPECT_THAT(check_placement(four_nodes({2, 2, 3, 3, 0, 0, 1, 1})), IsEmpty());  // any order of whole nodes
  EXPECT_THAT(check_placement(four_nodes({})), IsEmpty());
}

TEST(Placement, ScatteredRanksAreNamed) {
  const Job job = four_nodes({0, 1, 2, 3, 0, 1, 2, 3});
  const auto diagnostics = check_placement(job);
  ASSERT_EQ(diagnostics.size(), 1U);
  EXPECT_FALSE(diagnostics[0].error);
  EXPECT_THAT(diagnostics[0].text,
              mentions("ranks of n1 are not consecutive (rank 4 is there, rank 3 is not)",
                       "srun --distribution=block"));
  EXPECT_FALSE(topology_of(job));
}

TEST(Placement, UnequalNodesAreNamed) {
  const auto diagnostics = check_placement(four_nodes({0, 0, 1, 2, 2, 3, 3}));
  ASSERT_EQ(diagnostics.size(), 1U);
  EXPECT_THAT(diagnostics[0].text, mentions("n1 has 2 ranks and n2 has 1", "--ntasks-per-node"));
}

TEST(Placement, SwitchesAreGoneThroughOnce) {
  Job job = four_nodes({0, 0, 1, 1, 2, 2, 3, 3});
  job.leaves = crossed;
  EXPECT_THAT(switch_order(job), ElementsAre(0, 2, 1, 3));
  const auto diagnostics = check_placement(job);
  ASSERT_EQ(diagnostics.size(), 1U);
  EXPECT_THAT(diagnostics[0].text, mentions("4 crossings", "2 would do", "n1, n3, n2, n4"));
  job.node_of_rank = {0, 0, 2, 2, 1, 1, 3, 3};
  EXPECT_THAT(check_placement(job), IsEmpty());
  EXPECT_EQ(topology_of(job), Topology::uniform(8, 2));
}

TEST(Placement, HigherSwitchesKeepTheirLeavesTogether) {
  Job job = four_nodes({});
  job.leaves = {{.name = "a", .path = "x.a", .hosts = {"n1"}},
                {.name = "b", .path = "y.b", .hosts = {"n2"}},
                {.name = "c", .path = "x.c", .hosts = {"n3"}},
                {.name = "d", .path = "y.d", .hosts = {"n4"}}};
  EXPECT_THAT(switch_order(job), ElementsAre(0, 2, 1, 3));
}

}  // namespace
}  // namespace annulus
