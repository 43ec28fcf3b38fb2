#include "common/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/printable.hpp"
#include "base/system/signals.hpp"
#include "common/text.hpp"

namespace annulus::app {

namespace {

int output_error = 0;  // errno of the first write that has failed

}  // namespace

void prepare_process() {
  struct sigaction nothing {
  }, before{};
  nothing.sa_handler = [](int) {
  };  // and not SIG_IGN, which programs that are started from here would inherit
  nothing.sa_flags = SA_RESTART;
  sigemptyset(&nothing.sa_mask);
  for (const int signal : {SIGXFSZ, SIGPIPE}) handle_unless_ignored(signal, nothing, before);
  // In this order each takes the lowest number that is free, its own.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
}

std::string output_problem() {
  errno = 0;
  bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  // Network file systems and quotas may refuse no sooner than at the end of the file.
  if (const int copy = failed ? -1 : ::dup(STDOUT_FILENO); copy >= 0) failed = ::close(copy) != 0;
  if (!failed) return {};
  if (output_error == 0) output_error = errno;
  return fmt::format(
      "standard output could not be written{}: what was printed is not all there; give it another place",
      output_error == 0 ? "" : fmt::format(" ({})", std::strerror(output_error)));
}

void say(const std::string& line) {
  std::fputs((printable_message(line) + "\n").c_str(), stderr);
}

std::string problem_of(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr && std::ferror(stdout) != 0) {
    output_error = system->code().value();
    return output_problem();
  }
  return error.what();
}

std::string driver() {
  const char* const name = std::getenv("ANNULUS_DRIVER");
  return name == nullptr || *name == '\0' ? "" : shell_word(name);
}

std::string launcher(int ranks) {
  if (const std::string script = driver(); !script.empty()) return fmt::format("{} run {}", script, ranks);
  std::string flags;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    flags = " --oversubscribe --bind-to none";
    if (::geteuid() == 0) flags += " --allow-run-as-root";
  } else if (std::getenv("SLURM_STEP_TASKS_PER_NODE") != nullptr) {
    return fmt::format("srun -n {}", ranks);
  }
  return fmt::format("mpirun{} -n {}", flags, ranks);
}

void end_with_reader() {
  struct sigaction now {};
  sigaction(SIGPIPE, nullptr, &now);
  if (output_error == EPIPE && now.sa_handler != SIG_IGN) end_by(SIGPIPE);
}

}  // namespace annulus::app
