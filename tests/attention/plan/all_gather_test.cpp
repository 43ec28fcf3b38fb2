#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"

namespace annulus::plan {
namespace {

using test::make_problem;
using testing::IsEmpty;

TEST(AllGather, TakesTwoStepsForwardAndOneADistanceBackward) {
  const Problem problem = make_problem(5, 61, "zigzag", "causal");
  EXPECT_EQ(make_all_gather(problem, Pass::forward).steps, 2);
  EXPECT_EQ(make_all_gather(problem, Pass::backward).steps, 4 + 3);
  const Problem near = make_problem(5, 50, "contiguous", "window:10,0");  // one shard back at most
  EXPECT_EQ(make_all_gather(near, Pass::forward).steps, 2);
  EXPECT_EQ(make_all_gather(near, Pass::backward).steps, 1 + 3);
  const Problem alone = make_problem(5, 50, "contiguous", "documents:0,10,20,30,40");
  EXPECT_EQ(make_all_gather(alone, Pass::forward).steps, 1);
  EXPECT_EQ(make_all_gather(alone, Pass::backward).steps, 1);
}

TEST(AllGather, WindowsSendTheRowsThatTheyReach) {
  const Problem problem = make_problem(8, 80, "contiguous", "window:4,2");
  const Plan backward = make_all_gather(problem, Pass::backward);
  EXPECT_THAT(violations(backward), IsEmpty());
  for (int rank = 0; rank < 8; ++rank) {
    const Step step = backward.step(rank, 0);
    for (const Transfer& send : step.sends) {
      const bool behind = send.peer == rank + 1;
      EXPECT_TRUE(behind || send.peer == rank - 1);
      EXPECT_EQ(send.slice.rows, (behind ? RowRange{6, 10} : RowRange{0, 2}));
    }
    EXPECT_EQ(step.sends.size(), rank == 0 || rank == 7 ? 2u : 4u);
  }
  const std::int64_t row = problem.batch * problem.head_dim * problem.kv_heads;
  EXPECT_EQ(traffic(backward, 3).sent[static_cast<int>(Tensor::v)], (4 + 2) * row);
  EXPECT_EQ(traffic(backward, 3).sent[static_cast<int>(Tensor::dv)], (4 + 2) * row);
  EXPECT_EQ(traffic(backward, 0).received[static_cast<int>(Tensor::dk)], 4 * row);
}

TEST(AllGather, DocumentsStayAmongTheirRanks) {
  // Documents 0:25 on ranks 0 to 2, 25:60 on ranks 2 to 5.
  const Plan plan = make_all_gather(make_problem(6, 60, "contiguous", "documents:0,25"), Pass::forward);
  EXPECT_THAT(violations(plan), IsEmpty());
  for (int rank = 0; rank < 6; ++rank) {
    for (const Transfer& receive : plan.step(rank, 0).receives) {
      const bool first = rank <= 2 && receive.peer<rank, second = rank> 2 && receive.peer >= 2;
      EXPECT_TRUE(first || second) << rank << " from " << receive.peer;
      EXPECT_EQ(receive.slice.rows.begin, rank > 2 && receive.peer == 2 ? 5 : 0);
    }
  }
  EXPECT_EQ(plan.step(5, 0).receives.size(), 2u * 3);
  EXPECT_EQ(plan.step(2, 0).receives.size(), 2u * 2);
}

}  // namespace
}  // namespace annulus::plan
