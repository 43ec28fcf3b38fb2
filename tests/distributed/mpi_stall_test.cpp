// A rank is lost or stuck: the others say in which step of which plan they are and for what they wait, and
// the job ends soon, with nothing of it left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "distributed/stall_job.hpp"

namespace annulus::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Rank 0 and rank 2 say what they do in a line each.
void expect_reports(const Outcome& outcome) {
  for (const char* rank : {"0", "2"})
    EXPECT_THAT(outcome.output, ContainsRegex(std::string("annulus: rank ") + rank +
                                              ": .*ring backward, in plan step [0-4] of 0 to 4, "));
  EXPECT_THAT(outcome.output, HasSubstr("stalled: ring backward"));
  EXPECT_THAT(outcome.output, HasSubstr("the run ends because a wait has taken longer than 1 s"));
}

constexpr double soon = 20;  // seconds, start of the job included, on a busy machine

Outcome run_job(const std::string& how, int timeout) {
  return run_stall_job(how, timeout, 3, "mpi");
}

TEST(MpiStall, WithoutAStallAllEndsWell) {
  const Outcome outcome = run_job("none", never_reached_ms);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, "");
}

// A rank that computes for ever, asleep or awake, still says so itself.
TEST(MpiStall, RankThatComputesForEver) {
  for (const char* how : {"sleep", "loop"}) {
    const Outcome outcome = run_job(how, timeout_ms);
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_LT(outcome.seconds, soon);
    expect_reports(outcome);
    EXPECT_THAT(outcome.output,
                ContainsRegex("rank 1: rank [02] has stalled; this rank: ring backward, in plan step "
                              "1 of 0 to 4, computes since [1-9]"));
    EXPECT_THAT(outcome.output,
                ContainsRegex("dk, dv\\[0\\] rows 0:32 heads 0:2 from rank 1, which sends it in "
                              "plan step 2; rank 1 was last heard of in plan step 1"));
    EXPECT_THAT(outcome.output, Not(HasSubstr("no answer")));
  }
}

// A stopped process cannot speak; rank 2, which computes, can.
TEST(MpiStall, RankThatIsStopped) {
  const Outcome outcome = run_job("stop", timeout_ms);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, soon);
  expect_reports(outcome);
  EXPECT_THAT(outcome.output, ContainsRegex("rank 0: stalled: .* rank 1 takes "));
  EXPECT_THAT(outcome.output, ContainsRegex("rank 2: rank 0 has stalled; this rank: .*, computes since "));
  EXPECT_THAT(outcome.output, HasSubstr("no answer within 3 s from rank 1: killed, stopped or out of reach"));
}

// mpirun ends the job long before the timeout: the survivors say what they were waiting for.
TEST(MpiStall, RankThatIsLost) {
  for (const char* how : {"kill", "exit"}) {
    const Outcome outcome = run_job(how, never_reached_ms);
    EXPECT_NE(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.status, 124) << "timed out";
    EXPECT_LT(outcome.seconds, soon);
    EXPECT_THAT(outcome.output,
                ContainsRegex("annulus: rank [02]: asked to end .SIGTERM: .*: ring backward, in plan step "
                              "[0-4] of 0 to 4, has waited .* rank 1"));
  }
}

TEST(MpiStall, RankThatLeavesEarly) {
  const Outcome outcome = run_job("leave", timeout_ms);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, soon);
  EXPECT_THAT(outcome.output, ContainsRegex("rank 1: .*the end of the program: has waited"));
  EXPECT_THAT(outcome.output, ContainsRegex("rank 0: .*an all_gather of 16 bytes per rank: has waited"));
}

TEST(MpiStall, RankThatIsMissingInACollective) {
  const Outcome outcome = run_job("collective", timeout_ms);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, soon);
  EXPECT_THAT(outcome.output, ContainsRegex("an all_reduce of 65536 f32: has waited .* bytes from rank 1"));
  EXPECT_THAT(outcome.output, HasSubstr("no answer within 3 s from rank 1"));
}

TEST(MpiStall, RankThatIsMissingInAGatherOfALayer) {
  const Outcome outcome = run_job("gather", timeout_ms);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, soon);
  EXPECT_THAT(outcome.output,
              ContainsRegex("the all-gather of the weights of layer 3: has waited .* bytes from rank 1"));
}

TEST(MpiStall, AScopeMaySetALongerTimeout) {
  const Outcome outcome = run_job("patience", timeout_ms);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, "");
}

// A rank with an error of its own is not lost: its line is the only one.
TEST(MpiStall, RankThatFailsSpeaksAlone) {
  const Outcome outcome = run_job("fail", never_reached_ms);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("annulus: rank 1: the kernel failed\n"));
  EXPECT_THAT(outcome.output, Not(ContainsRegex("annulus: rank [02]")));
}

}  // namespace
}  // namespace annulus::test
