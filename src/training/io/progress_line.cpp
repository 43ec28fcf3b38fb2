#include "training/io/progress_line.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace annulus::io {

namespace {

/// "24 s", "3 min", "2.5 h".
std::string duration_text(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

/// Open MPI's mpirun is this process' parent, and its standard error, to which it hands on what ranks write
/// into their pipes, is a terminal.
bool mpirun_writes_to_terminal() {
  const std::string parent = fmt::format("/proc/{}", ::getppid());
  std::string name;
  std::getline(std::ifstream(parent + "/comm"), name);
  if (name != "mpirun" && name != "mpiexec" && name != "orterun" && name != "prterun") return false;
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(parent + "/fd/2", error).string();
  return !error && (target.starts_with("/dev/pts/") || target.starts_with("/dev/tty"));
}

}  // namespace

ProgressLine::ProgressLine(std::string what, std::int64_t total_bytes)
    : what_(std::move(what)),
      total_(total_bytes),
      on_terminal_(::isatty(STDERR_FILENO) == 1 || mpirun_writes_to_terminal()),
      start_(Clock::now()),
      last_(start_) {}

ProgressLine::~ProgressLine() {
  hide();
}

void ProgressLine::hide() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

std::string ProgressLine::text(const std::string& what, std::int64_t bytes, std::int64_t total,
                               double seconds) {
  const double rate = seconds > 0 ? double(bytes) / seconds : 0;
  const bool large = total >= 1'000'000'000;
  const double unit = large ? 1e9 : 1e6;
  return fmt::format("{}: {:.2f} of {:.2f} {}, {:.2f} {}/s, {} left", what, double(bytes) / unit,
                     double(total) / unit, large ? "GB" : "MB", rate / unit, large ? "GB" : "MB",
                     rate > 0 ? duration_text(double(total - bytes) / rate) : std::string("unknown time"));
}

void ProgressLine::show(std::int64_t bytes) {
  if (!on_terminal_) return;
  const Clock::time_point now = Clock::now();
  if (now - last_ < (shown_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(1000))) return;
  last_ = now;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::fputs(("\r\033[K" + text(what_, bytes, total_, seconds)).c_str(),
             stderr);  // may fail: nobody looks then
  std::fflush(stderr);
}

}  // namespace annulus::io
