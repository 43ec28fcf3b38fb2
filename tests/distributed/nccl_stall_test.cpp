// A rank is lost or stuck while the GPUs of the others wait for it over NCCL, and their hosts for the GPUs:
// those say in which step of which plan the transfer was posted that waits, and the job ends soon.
#include <gmock/gmock.h>

#include <future>
#include <map>
#include <semaphore>
#include <string>

#include "distributed/stall_job.hpp"

namespace annulus::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr double soon = 30;       // seconds: two programs start CUDA and NCCL
constexpr int patient_ms = 5000;  // the start of NCCL is a wait, too, and takes seconds on a busy machine

/// The jobs of all tests. They wait most of their time, so four run at once.
class Jobs {
 public:
  Jobs() {
    for (const char* how : {"sleep", "loop", "stop", "collective", "gather"}) start(how, patient_ms);
    for (const char* how : {"kill", "fail"}) start(how, never_reached_ms);
  }
  /// What is left of the job in which rank 1 gets lost in the way `how`.
  const Outcome& outcome_of(const std::string& how) { return outcomes_.at(how).get(); }

  static Outcome run(const std::string& how, int timeout) { return run_stall_job(how, timeout, 2, "nccl"); }

 private:
  void start(const std::string& how, int timeout) {
    outcomes_[how] = std::async(std::launch::async, [this, how, timeout] {
      places_.acquire();
      Outcome outcome = run(how, timeout);
      places_.release();
      return outcome;
    });
  }

  std::counting_semaphore<4> places_{4};
  std::map<std::string, std::shared_future<Outcome>> outcomes_;
};

class NcclStall : public ::testing::Test {
 protected:
  void SetUp() override {
    static const Outcome sound = Jobs::run("none", never_reached_ms);
    for (const char* lacks : {"finds none", "built without NCCL"})
      if (sound.output.find(lacks) != std::string::npos) GTEST_SKIP() << "NCCL wants a GPU";
    ASSERT_EQ(sound.status, 0) << sound.output;
  }
  static const Outcome& run(const std::string& how) {
    static Jobs jobs;
    return jobs.outcome_of(how);
  }

  /// Rank 0 tells of the transfer for which its stream waits.
  static void expect_report(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_LT(outcome.seconds, soon);
    EXPECT_THAT(
        outcome.output,
        ContainsRegex("annulus: rank 0: stalled: .*ring backward, in plan step [0-9] of 0 to [0-9], has "
                      "waited [5-9]\\.[0-9] s on channel '[a-z]+' for .*\\[[01]\\] rows .* from rank 1, "
                      "which sends it in plan step [0-9]"));
    EXPECT_THAT(outcome.output, HasSubstr("the run ends because a wait has taken longer than 5 s"));
  }
};

TEST_F(NcclStall, RankThatNeverPosts) {
  for (const char* how : {"sleep", "loop"}) {
    const Outcome& outcome = run(how);
    expect_report(outcome);
    EXPECT_THAT(outcome.output,
                ContainsRegex("rank 1: rank 0 has stalled; this rank: ring backward, in plan step 1 "
                              "of 0 to [0-9], computes since [1-9]"));
  }
}

TEST_F(NcclStall, RankThatIsStopped) {
  const Outcome& outcome = run("stop");
  expect_report(outcome);
  EXPECT_THAT(outcome.output, HasSubstr("no answer within 3 s from rank 1: killed, stopped or out of reach"));
}

// mpirun, or NCCL's own connection, tells of it long before the timeout.
TEST_F(NcclStall, RankThatIsKilled) {
  const Outcome& outcome = run("kill");
  EXPECT_NE(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.status, 124) << "timed out";
  EXPECT_LT(outcome.seconds, soon);
  EXPECT_THAT(outcome.output,
              ContainsRegex("annulus: rank 0: .*ring backward, in plan step [0-9] of 0 to [0-9], "
                            "has waited .* rank 1"));
}

TEST_F(NcclStall, RankThatIsMissingInACollective) {
  const Outcome& outcome = run("collective");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, soon);
  EXPECT_THAT(outcome.output, ContainsRegex("an all_reduce of 65536 f32.* has waited "));
  EXPECT_THAT(outcome.output, HasSubstr("no answer within 3 s from rank 1"));
}

// The host waits elsewhere: what the stream waits for has the name under which it was started.
TEST_F(NcclStall, RankThatIsMissingInAGatherOfALayer) {
  const Outcome& outcome = run("gather");
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, soon);
  EXPECT_THAT(outcome.output, ContainsRegex("the all-gather of the weights of layer 3.* has waited "));
}

TEST_F(NcclStall, RankThatFailsSpeaks) {
  const Outcome& outcome = run("fail");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_LT(outcome.seconds, soon);
  EXPECT_THAT(outcome.output, HasSubstr("annulus: rank 1: the kernel failed\n"));
}

}  // namespace
}  // namespace annulus::test
