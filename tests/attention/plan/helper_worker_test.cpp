#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/check_plan.hpp"
#include "support/error_text.hpp"

namespace annulus::plan {
namespace {

using test::make_problem;
using testing::HasSubstr;
using testing::IsEmpty;

/// DistFlashAttn §3.2: ⌊P/2⌋ + 1 rounds, in which nobody is idle when P is odd, and P/2 ranks once when it is
/// even.
TEST(HelperWorker, BalancesTheWork) {
  for (int ranks = 2; ranks <= 12; ++ranks) {
    for (const Pass pass : test::passes) {
      const Plan plan = make_helper_worker(make_problem(ranks, 8 * ranks, "contiguous", "causal"), pass);
      int idle = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        for (int step = 0; step < plan.steps; ++step) {
          const std::size_t computes = plan.step(rank, step).computes.size();
          EXPECT_LE(computes, 1u);
          if (step > ranks / 2) {
            EXPECT_EQ(computes, 0u);
          } else {
            idle += computes == 0;
          }
        }
      }
      EXPECT_EQ(idle, ranks % 2 == 0 ? ranks / 2 : 0);
      // The results of the last round with any travel in the next step, and are waited for in the one behind.
      const bool helped_last = ranks % 2 == 1;
      const int forward = ranks == 2 ? 2 : ranks / 2 + (helped_last ? 3 : 2);
      EXPECT_EQ(plan.steps, pass == Pass::forward ? forward : ranks / 2 + 3) << ranks;
    }
  }
}

TEST(HelperWorker, HelpersServeTheRanksBeforeThemAroundTheRing) {
  const Plan plan = make_helper_worker(make_problem(8, 64, "contiguous", "causal"), Pass::forward);
  for (int t = 1; t <= 4; ++t) {
    for (int rank = 0; rank < t; ++rank) {
      const Step step = plan.step(rank, t);
      if (t == 4) {
        EXPECT_THAT(step.computes, IsEmpty());
        continue;
      }
      ASSERT_EQ(step.computes.size(), 1u);
      EXPECT_EQ(step.computes[0].q_shard, (rank - t + 8) % 8);
      EXPECT_EQ(step.computes[0].kv_shard, rank);
      const Step next = plan.step(rank, t + 1);
      const auto& sends = next.sends;
      EXPECT_EQ(std::ranges::count_if(sends, [](const Transfer& s) { return s.slice.tensor == Tensor::o; }),
                1);
      for (const Transfer& send : sends) {
        EXPECT_EQ(send.wire, DType::f32);
        const bool result = send.slice.tensor == Tensor::o || send.slice.tensor == Tensor::lse;
        EXPECT_EQ(result, send.peer == (rank - t + 8) % 8 && send.channel == Channel::gradients);
      }
    }
  }
}

TEST(HelperWorker, WindowsLeaveRoundsOut) {
  const Problem problem = make_problem(8, 80, "contiguous", "window:4,0");
  const Plan forward = make_helper_worker(problem, Pass::forward);
  EXPECT_EQ(forward.steps, 2);
  EXPECT_EQ(make_helper_worker(problem, Pass::backward).steps, 4);
  for (const Transfer& send : forward.step(3, 0).sends) {
    EXPECT_EQ(send.slice.rows, (RowRange{6, 10}));
    EXPECT_EQ(send.peer, 4);
  }
}

TEST(HelperWorker, NamesASchedulesThatServesWhatItDoesNot) {
  const auto error = [](std::string_view layout, std::string_view mask) {
    return error_text([&] { make_helper_worker(make_problem(3, 20, layout, mask), Pass::forward); });
  };
  EXPECT_EQ(error("contiguous", "causal"), "no error");
  EXPECT_THAT(error("zigzag", "causal"), HasSubstr("use layout contiguous, or schedule ring or burst"));
  EXPECT_THAT(error("striped", "causal"), HasSubstr("layout striped"));
  EXPECT_THAT(error("contiguous", "full"), HasSubstr("under mask full earlier tokens attend to later ones"));
  EXPECT_THAT(error("contiguous", "window:3,1"), HasSubstr("use schedule ring or burst"));
}

}  // namespace
}  // namespace annulus::plan
