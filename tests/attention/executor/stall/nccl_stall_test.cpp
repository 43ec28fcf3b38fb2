// A rank is lost or stuck while the GPUs of the others wait for it over NCCL, and their hosts for the GPUs:
// those say in which step of which plan the transfer was posted that waits, and the job ends soon.
#include <future>
#include <map>
#include <semaphore>

#include "attention/executor/stall/stall_job.hpp"

namespace annulus::test {
namespace {

constexpr double soon = 30;       // seconds: two programs start CUDA and NCCL
constexpr int patient_ms = 5000;  // the start of NCCL is a wait, too, and takes seconds on a busy machine

/// Rank 0 tells of the transfer for which its stream waits, beside `more`.
std::vector<std::string> reports(std::vector<std::string> more) {
  more.insert(
      more.end(),
      {"annulus: rank 0: stalled: .*ring backward, in plan step [0-9] of 0 to [0-9], has waited "
       "[5-9]\\.[0-9] s on channel '[a-z]+' for .*\\[[01]\\] rows .* from rank 1, which sends it in plan "
       "step [0-9]",
       "the run ends because a wait has taken longer than 5 s"});
  return more;
}

const std::vector<std::string> computes_for_ever =
    reports({"rank 1: rank 0 has stalled; this rank: ring backward, "
             "in plan step 1 of 0 to [0-9], computes since [1-9]"});
const std::string no_answer = "no answer within 3 s from rank 1";

const Stall stalls[] = {
    {"sleep", patient_ms, 1, computes_for_ever},
    {"loop", patient_ms, 1, computes_for_ever},
    {"stop", patient_ms, 1, reports({no_answer + ": killed, stopped or out of reach"})},
    // mpirun, or NCCL's own connection, tells of it long before the timeout.
    {"kill",
     never_reached_ms,
     any_failure,
     {"annulus: rank 0: .*ring backward, in plan step [0-9] of 0 to [0-9], has waited .* rank 1"}},
    {"collective", patient_ms, 1, {"an all_reduce of 65536 f32.* has waited ", no_answer}},
    // The host waits elsewhere: what the stream waits for has the name under which it was started.
    {"gather", patient_ms, 1, {"the all-gather of the weights of layer 3.* has waited "}},
    {"fail", never_reached_ms, 1, {"annulus: rank 1: the kernel failed\n"}}};

/// The jobs of all tests. They wait most of their time, so four run at once.
class Jobs {
 public:
  Jobs() {
    for (const Stall& stall : stalls) {
      outcomes_[stall.how] = std::async(std::launch::async, [this, stall] {
        places_.acquire();
        ShellResult outcome = run_stall_job(stall.how, stall.timeout, 2, "nccl");
        places_.release();
        return outcome;
      });
    }
  }
  /// What is left of the job in which rank 1 gets lost in the way `how`.
  const ShellResult& outcome_of(const std::string& how) { return outcomes_.at(how).get(); }

 private:
  std::counting_semaphore<4> places_{4};
  std::map<std::string, std::shared_future<ShellResult>> outcomes_;
};

class NcclStall : public testing::TestWithParam<Stall> {
 protected:
  void SetUp() override {
    static const ShellResult sound = run_stall_job("none", never_reached_ms, 2, "nccl");
    for (const char* lacks : {"finds none", "built without NCCL"})
      if (sound.output.find(lacks) != std::string::npos) GTEST_SKIP() << "NCCL wants a GPU";
    ASSERT_EQ(sound.status, 0) << sound.output;
  }
};

TEST_P(NcclStall, EndsWithReports) {
  static Jobs jobs;
  expect_outcome(jobs.outcome_of(GetParam().how), GetParam(), soon);
}

INSTANTIATE_TEST_SUITE_P(Ways, NcclStall, testing::ValuesIn(stalls),
                         [](const auto& info) { return std::string(info.param.how); });

}  // namespace
}  // namespace annulus::test
