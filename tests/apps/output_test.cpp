// What programs print arrives, or their status says that it has not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/shell.hpp"

namespace annulus {
namespace {

using test::run_shell;
using test::ShellResult;
using testing::HasSubstr;

class Output : public testing::TestWithParam<const char*> {
 protected:
  std::string program() const { return std::string(ANNULUS_PROGRAMS "/") + GetParam(); }
  /// Exit status of an error: that of annulus-diff tells errors from differences.
  int error_status() const { return std::string(GetParam()) == "annulus-diff" ? 2 : 1; }
};

TEST_P(Output, ThatCannotBeWrittenIsAnError) {
  for (const char* what : {"--help", "--version"}) {
    EXPECT_EQ(run_shell(program() + " " + what).status, 0);
    for (const char* where : {" >/dev/full", " >&-"}) {
      const ShellResult result = run_shell(program() + " " + what + where);
      EXPECT_EQ(result.status, error_status()) << what << where;
      EXPECT_THAT(result.output, HasSubstr("standard output could not be written")) << what << where;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Output,
                         testing::Values("annulus-bench", "annulus-diff", "annulus-eval", "annulus-plan",
                                         "annulus-tokens", "annulus-topology", "annulus-train",
                                         "annulus-weights"),
                         [](const auto& info) { return std::string(info.param).substr(8); });

TEST(Output, OfMoreThanABufferIsNoOther) {
  const std::string plan = ANNULUS_PROGRAMS "/annulus-plan --ranks 64 --tokens 16384 --print";
  const ShellResult full = run_shell(plan + " >/dev/full");
  EXPECT_EQ(full.status, 1);
  EXPECT_THAT(full.output,
              testing::MatchesRegex("annulus-plan: standard output could not be written \\(No space.*\n"));
  // A reader who has seen enough is no error that anybody wants to read of. More is printed than a pipe
  // holds.
  const ShellResult head = run_shell("bash -c '" + plan + " | head -n 1; test ${PIPESTATUS[0]} -eq 141'");
  EXPECT_THAT(head.output, testing::Not(HasSubstr("annulus-plan: ")));
  EXPECT_EQ(head.status, 0) << head.output;
}

// As `--print-config | head` does.
TEST(Output, OfOneRankWhoseReaderHasGoneEndsInSilence) {
  const ShellResult head = run_shell("bash -c '{ sleep 0.2; " ANNULUS_PROGRAMS
                                     "/annulus-train --print-config; } | true; echo ${PIPESTATUS[0]}'");
  EXPECT_EQ(head.output, "141\n");
}

}  // namespace
}  // namespace annulus
