// A rank is lost or stuck: the others say in which step of which plan they are and for what they wait, and
// the job ends soon, with nothing of it left.
#include "attention/executor/stall/stall_job.hpp"

namespace annulus::test {
namespace {

constexpr double soon = 20;  // seconds, start of the job included, on a busy machine

/// Ranks 0 and 2 say what they do in a line each, beside `more`.
std::vector<std::string> reports(std::vector<std::string> more) {
  more.insert(more.end(),
              {"annulus: rank 0: .*ring backward, in plan step [0-4] of 0 to 4, ",
               "annulus: rank 2: .*ring backward, in plan step [0-4] of 0 to 4, ", "stalled: ring backward",
               "the run ends because a wait has taken longer than 1 s"});
  return more;
}

// A rank that computes for ever, asleep or awake, still says so itself.
const std::vector<std::string> computes_for_ever =
    reports({"rank 1: rank [02] has stalled; this rank: ring backward, in plan step 1 of 0 to 4, computes "
             "since [1-9]",
             "dk, dv\\[0\\] rows 0:32 heads 0:2 from rank 1, which sends it in plan step 2; rank 1 "
             "was last heard of in plan step 1"});
// mpirun ends the job long before the timeout: the survivors say what they were waiting for.
const std::vector<std::string> lost = {
    "annulus: rank [02]: asked to end .SIGTERM: .*: ring backward, in plan step [0-4] of 0 to 4, has waited "
    ".* "
    "rank 1"};
const std::string no_answer = "no answer within 3 s from rank 1";

const Stall stalls[] = {
    {"none", never_reached_ms, 0, {}, {"."}},
    {"sleep", timeout_ms, 1, computes_for_ever, {"no answer"}},
    {"loop", timeout_ms, 1, computes_for_ever, {"no answer"}},
    // A stopped process cannot speak; rank 2, which computes, can.
    {"stop", timeout_ms, 1,
     reports({"rank 0: stalled: .* rank 1 takes ",
              "rank 2: rank 0 has stalled; this rank: .*, computes since ",
              no_answer + ": killed, stopped or out of reach"})},
    {"kill", never_reached_ms, any_failure, lost},
    {"exit", never_reached_ms, any_failure, lost},
    {"leave",
     timeout_ms,
     1,
     {"rank 1: .*the end of the program: has waited",
      "rank 0: .*an all_gather of 8 bytes per rank: has waited"}},
    {"collective", timeout_ms, 1, {"an all_reduce of 65536 f32: has waited .* bytes from rank 1", no_answer}},
    {"gather", timeout_ms, 1, {"the all-gather of the weights of layer 3: has waited .* bytes from rank 1"}},
    {"patience", timeout_ms, 0, {}, {"."}},  // a scope may set a longer timeout
    // A rank with an error of its own is not lost: its line is the only one.
    {"fail", never_reached_ms, 1, {"annulus: rank 1: the kernel failed\n"}, {"annulus: rank [02]"}}};

class MpiStall : public testing::TestWithParam<Stall> {};

TEST_P(MpiStall, EndsWithReportsOfAll) {
  const Stall& stall = GetParam();
  expect_outcome(run_stall_job(stall.how, stall.timeout, 3, "mpi"), stall, soon);
}

INSTANTIATE_TEST_SUITE_P(Ways, MpiStall, testing::ValuesIn(stalls),
                         [](const auto& info) { return std::string(info.param.how); });

}  // namespace
}  // namespace annulus::test
