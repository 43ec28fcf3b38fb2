#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <annulus/comm/watch.hpp>

#include "comm/mpi/communicator.hpp"

namespace annulus::comm {

/// Looks after the waits of this rank, from a thread of its own that starts with the first limit. So ranks
/// that compute, or are stuck, can still say what they are doing, and the waits themselves stay as they are.
///
/// A rank whose wait exceeds its limit writes what it waits for, alarms all others, takes their answers for
/// three seconds, names those that do not answer, and ends the job. An alarmed rank writes what it is doing
/// and answers. This needs MPI_THREAD_MULTIPLE; under an MPI that gives less, every rank speaks and ends on
/// its own account.
///
/// A launcher that loses a rank sends the others SIGTERM. A rank that gets it and still waits a moment later
/// writes for what; then SIGTERM takes its course.
///
/// Time during which the process was stopped does not count: a job may be suspended as a whole.
///
/// Transfers that go on without the host (Watch::Background) are looked at in every round: they are waits
/// like others, an error that they meet ends the job at once, and they are ended before it.
class MpiGuard {
 public:
  /// Collective over MPI_COMM_WORLD.
  MpiGuard();
  /// Stops the thread.
  ~MpiGuard();
  MpiGuard(const MpiGuard&) = delete;
  MpiGuard& operator=(const MpiGuard&) = delete;

  const std::shared_ptr<Watch>& watch() const { return watch_; }

  /// Until all ranks are here. MPI_Finalize waits, too, but other threads must be out of MPI by then.
  void wait_for_all();

  /// Before this rank ends the job with a message of its own: the others need not explain themselves.
  static void hush_others();

 private:
  enum Tag : int { alarm, answer, hush };

  void start();
  void run(const std::stop_token& stop);
  void look_at_messages();
  void look_at_signal();
  [[noreturn]] void report_stall(Watch::Limit limit);
  [[noreturn]] void end_job() const;
  void tell(int rank, Tag tag) const;
  std::string whereabouts() const;
  bool can_talk() const { return talks_ && ranks_ > 1; }

  std::shared_ptr<Watch> watch_;
  MpiLink link_;
  int rank_ = 0, ranks_ = 1;
  bool talks_ = false;            ///< this MPI may be called by any thread
  bool hushed_ = false;           ///< another rank has said why the job ends
  std::vector<bool> heard_;       ///< an alarm or an answer, by rank
  int lowest_alarm_;              ///< rank of the lowest other one that has stalled; ranks_: none
  Watch::Clock::time_point end_;  ///< when an alarmed rank ends the job itself; max: not alarmed
  Watch::Clock::time_point signalled_;
  Watch::Clock::duration stopped_{};  ///< how long the process stood still the last time
  std::jthread thread_;
};

}  // namespace annulus::comm
