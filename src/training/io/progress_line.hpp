#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace annulus::io {

/// How far a long piece of work with bytes has come, on one line of a terminal: bytes, rate, time left. It
/// shows after a second, is written anew at most five times a second, and goes with this object. Where
/// standard error is no terminal, nor mpirun's that started this process (Open MPI), nothing is written.
class ProgressLine {
 public:
  /// `what` begins the line: "loading step-00000100".
  ProgressLine(std::string what, std::int64_t total_bytes);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Bytes done so far.
  void show(std::int64_t bytes);

  /// Takes the line away until the next show(), so that something else can be written.
  void hide();

  /// "loading step-00000100: 12.3 of 40.6 GB, 1.20 GB/s, 24 s left".
  static std::string text(const std::string& what, std::int64_t bytes, std::int64_t total, double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  std::int64_t total_;
  bool on_terminal_, shown_ = false;
  Clock::time_point start_, last_;
};

}  // namespace annulus::io
