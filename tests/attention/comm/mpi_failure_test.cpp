// One rank fails while the others wait: all end within seconds, with one line that names it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "support/shell.hpp"

namespace {

struct Outcome : annulus::test::ShellResult {
  std::vector<std::string> messages;  ///< lines of Annulus
};

Outcome run_job(const std::string& how, int rank, int ranks) {
  Outcome outcome{annulus::test::run_shell(fmt::format("timeout 60 {} {} {} {} {}", ANNULUS_MPIRUN, ranks,
                                                       ANNULUS_FAILING_PROGRAM, how, rank)),
                  {}};
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);)
    if (line.find("annulus: ") != std::string::npos) outcome.messages.push_back(line);
  return outcome;
}

class MpiFailure : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(MpiFailure, EndsTheJobWithOneLine) {
  const auto& [how, rank] = GetParam();
  const Outcome outcome = run_job(how, rank, 3);
  EXPECT_EQ(outcome.status, 1) << outcome.output;
  EXPECT_LT(outcome.seconds, 10);
  ASSERT_EQ(outcome.messages.size(), 1u) << outcome.output;
  const std::string what = how == "all"     ? "the configuration is wrong in every rank"
                           : how == "sizes" ? "expects 50 bytes from rank"
                                            : "the shard is truncated";
  EXPECT_THAT(outcome.messages[0], testing::StartsWith("annulus: rank " + std::to_string(rank) + ": "));
  EXPECT_THAT(outcome.messages[0], testing::HasSubstr(what));
  EXPECT_LT(outcome.messages[0].size(), 20'000u);
}

INSTANTIATE_TEST_SUITE_P(Comm, MpiFailure,
                         testing::Values(std::tuple("receive", 0), std::tuple("long", 1),
                                         std::tuple("receive", 2), std::tuple("collective", 1),
                                         std::tuple("pending", 1), std::tuple("sizes", 1),
                                         std::tuple("all", 0)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

TEST(MpiFailure, WithoutAFailureAllEndsWell) {
  const Outcome outcome = run_job("none", 0, 3);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, "");
}

/// A program that catches the error too late still ends: the environment does not wait for the others.
TEST(MpiFailure, UnwindingThroughTheEnvironmentDoesNotHang) {
  const Outcome outcome = run_job("uncaught", 1, 3);
  EXPECT_NE(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.status, 124) << "timed out";
  EXPECT_LT(outcome.seconds, 10);
}

TEST(MpiFailure, ARankThatIsStoppedWhileMpiStartsIsNamed) {
  for (const int who : {0, 2}) {
    ::setenv("ANNULUS_START_TIMEOUT", "2", 1);
    const Outcome outcome = run_job("stopped", who, 3);
    ::unsetenv("ANNULUS_START_TIMEOUT");
    EXPECT_NE(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.status, 124) << "timed out";
    EXPECT_LT(outcome.seconds, 20);
    ASSERT_FALSE(outcome.messages.empty()) << outcome.output;
    // Where the time of two ranks is over, the later one may find the stopped rank ended with the job.
    EXPECT_THAT(outcome.messages,
                testing::Contains(testing::AllOf(
                    testing::StartsWith("annulus: rank "), testing::HasSubstr("MPI has not started"),
                    testing::HasSubstr(": rank " + std::to_string(who) + " (process "),
                    testing::HasSubstr("stopped"))));
  }
}

}  // namespace
