#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "support/shell.hpp"

namespace annulus::test {

/// What is left of a job of stall_program.cpp.
struct Outcome {
  int status = -1;
  double seconds = 0;
  std::string output;
};

constexpr int timeout_ms = 1000, never_reached_ms = 60000;

/// Runs a job in which rank 1 gets lost or stuck in the way `how`, under a timeout of waits in milliseconds.
inline Outcome run_stall_job(const std::string& how, int timeout, int ranks, const std::string& transport) {
  const auto start = std::chrono::steady_clock::now();
  const ShellResult result =
      run_shell("timeout 60 " ANNULUS_MPIRUN " " + std::to_string(ranks) + " " ANNULUS_STALL_PROGRAM " " +
                how + " " + std::to_string(timeout) + " " + transport);
  // Not one process of the job, which mpirun may be still reaping, is left.
  EXPECT_EQ(run_shell("for i in 1 2 3 4 5; do pgrep -f '^" ANNULUS_STALL_PROGRAM " " + how +
                      " ' || exit 0; sleep 1; done; exit 1")
                .status,
            0);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  return {result.status, time.count(), result.output};
}

}  // namespace annulus::test
