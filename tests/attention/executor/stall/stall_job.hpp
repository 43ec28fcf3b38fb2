#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "support/shell.hpp"

namespace annulus::test {

constexpr int timeout_ms = 1000, never_reached_ms = 60000;
constexpr int any_failure = -2;

/// A way in which rank 1 gets lost or stuck, and what a job is to leave.
struct Stall {
  const char* how;
  int timeout;  ///< of waits, in milliseconds
  int status;
  std::vector<std::string> says;        ///< regular expressions
  std::vector<std::string> never = {};  ///< regular expressions, too
  friend void PrintTo(const Stall& stall, std::ostream* to) { *to << stall.how; }
};

/// Runs a job of stall_program.cpp.
inline ShellResult run_stall_job(const std::string& how, int timeout, int ranks,
                                 const std::string& transport) {
  const ShellResult result =
      run_shell("timeout 60 " ANNULUS_MPIRUN " " + std::to_string(ranks) + " " ANNULUS_STALL_PROGRAM " " +
                how + " " + std::to_string(timeout) + " " + transport);
  // Not one process of the job, which mpirun may be still reaping, is left.
  EXPECT_EQ(run_shell("for i in 1 2 3 4 5; do pgrep -f '^" ANNULUS_STALL_PROGRAM " " + how +
                      " ' || exit 0; sleep 1; done; exit 1")
                .status,
            0);
  return result;
}

inline void expect_outcome(const ShellResult& outcome, const Stall& stall, double soon) {
  if (stall.status == any_failure) {
    EXPECT_NE(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.status, 124) << "timed out";
  } else {
    EXPECT_EQ(outcome.status, stall.status) << outcome.output;
  }
  EXPECT_LT(outcome.seconds, soon);
  for (const std::string& text : stall.says) EXPECT_THAT(outcome.output, testing::ContainsRegex(text));
  for (const std::string& text : stall.never)
    EXPECT_THAT(outcome.output, testing::Not(testing::ContainsRegex(text)));
}

}  // namespace annulus::test
