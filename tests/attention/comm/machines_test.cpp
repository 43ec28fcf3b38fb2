#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "attention/comm/reductions/split.hpp"
#include "support/error_text.hpp"

namespace annulus::comm {
namespace {

TEST(Machines, ConsecutiveRanksMakeNodes) {
  EXPECT_EQ(topology_of_machines(std::vector{0}), Topology({1}));
  EXPECT_EQ(topology_of_machines(std::vector{0, 0, 0}), Topology({3}));
  EXPECT_EQ(topology_of_machines(std::vector{0, 0, 2, 3, 3, 3}), Topology({2, 1, 3}));
}

TEST(Machines, ScatteredRanksAreAnErrorWithTheRemedy) {
  const std::string text = test::error_text([] { topology_of_machines(std::vector{0, 1, 0, 1}); });
  EXPECT_THAT(text, testing::HasSubstr("ranks 0 and 2 are on one machine, rank 1 between them is not"));
  EXPECT_THAT(text, testing::HasSubstr("--map-by slot"));
}

}  // namespace
}  // namespace annulus::comm
