#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <string>

namespace annulus::test {

/// How a shell command ended.
struct ShellResult {
  int status = -1;     ///< −1 when a signal ended it
  std::string output;  ///< of stdout and stderr
  double seconds = 0;  ///< that it took
};

/// Runs a shell command to its end.
inline ShellResult run_shell(const std::string& command) {
  ShellResult result;
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = ::popen(("{ " + command + "; } 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe))
    result.output.append(buffer, count);
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

/// What a command has printed that was to end with `status`.
inline std::string output_of(const ShellResult& result, int status = 0) {
  EXPECT_EQ(result.status, status) << result.output;
  return result.output;
}

}  // namespace annulus::test
