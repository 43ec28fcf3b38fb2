#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace annulus::train::test {

/// A command that a shell runs in the background, with all that it prints in a file.
class Job {
 public:
  Job(const std::string& command, const std::string& output_file);
  /// Kills what is still running.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Exit status; −1 when it is killed after `seconds`, 128 + n when signal n ended it.
  int wait(double seconds = 60);

  /// Sends a signal to the command itself.
  void signal(int signal) const;
  bool running();
  std::string output() const;

 private:
  pid_t pid_ = -1;
  std::string output_file_;
  int status_ = -1;
};

/// The process of an MPI rank among those whose command line holds `mark`; −1 if there is none.
pid_t rank_process(const std::string& mark, int rank);

/// Looks every few milliseconds whether `condition` holds; false when it does not within `seconds`.
bool wait_until(const std::function<bool()>& condition, double seconds = 30);

}  // namespace annulus::train::test
