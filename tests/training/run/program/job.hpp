#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace annulus::training::test {

/// Looks every few milliseconds whether `condition` holds; false when it does not within `seconds`.
template <class Condition>
bool wait_until(const Condition& condition, double seconds = 30) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// A command that a shell runs in the background, with all that it prints in a file.
class Job {
 public:
  Job(const std::string& command, const std::string& output_file) : pid_(::fork()) {
    if (pid_ != 0) return;
    const int out = ::open(output_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execl("/bin/bash", "bash", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  /// Kills what is still running.
  ~Job() { wait(0); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Exit status; −1 when it is killed after `seconds`, 128 + n when signal n ended it.
  int wait(double seconds = 60) {
    int status = 0;
    if (pid_ <= 0) return -1;
    const bool ended = wait_until([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, seconds);
    if (!ended) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
    return !ended ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Sends a signal to the command itself.
  void signal(int signal) const {
    if (pid_ > 0) ::kill(pid_, signal);
  }

 private:
  pid_t pid_;
};

/// The process of an MPI rank among those whose command line holds `mark`; −1 if there is none.
inline pid_t rank_process(const std::string& mark, int rank) {
  const auto contents = [](const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const std::string variable = '\0' + ("OMPI_COMM_WORLD_RANK=" + std::to_string(rank)) + '\0';
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == name.npos &&
        contents(entry.path() / "cmdline").find(mark) != std::string::npos &&
        ('\0' + contents(entry.path() / "environ")).find(variable) != std::string::npos)
      return std::stoi(name);
  }
  return -1;
}

}  // namespace annulus::training::test
