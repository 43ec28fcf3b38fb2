#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attention/comm/mpi/communicator.hpp"
#include "attention/comm/watchdog.hpp"

namespace annulus::comm {

/// Watchdog thread of this rank; starts when the first timeout is set. So ranks
/// that compute, or are stuck, can still say what they are doing, and the waits themselves stay as they are.
///
/// A rank whose wait exceeds its timeout writes what it waits for, alarms all others, takes their answers for
/// three seconds, names those that do not answer, and ends the job. An alarmed rank writes what it is doing
/// and answers. This needs MPI_THREAD_MULTIPLE; under an MPI that gives less, every rank speaks and ends on
/// its own account.
///
/// A launcher that loses a rank sends the others SIGTERM. A rank that gets it and still waits a moment later
/// writes for what; then SIGTERM takes its course.
///
/// Time during which the process was stopped does not count: a job may be suspended as a whole.
///
/// Transfers that go on without the host (Watchdog::Background) are looked at in every round: they are waits
/// like others, an error that they meet ends the job at once, and they are ended before it.
class MpiWatchdog {
 public:
  /// Collective over MPI_COMM_WORLD.
  MpiWatchdog();
  /// Stops the thread.
  ~MpiWatchdog();
  MpiWatchdog(const MpiWatchdog&) = delete;
  MpiWatchdog& operator=(const MpiWatchdog&) = delete;

  const std::shared_ptr<Watchdog>& watchdog() const { return watchdog_; }

  /// Waits until all ranks are here. MPI_Finalize waits, too, but other threads must be out of MPI by then.
  void wait_for_all();

  /// Tells the others to be silent: this rank is about to end the job with a message of its own, and they
  /// need not explain themselves.
  static void silence_others();

 private:
  enum Tag : int { alarm, answer, silence };

  void start();
  void run(const std::stop_token& stop);
  void poll_messages();
  void poll_signal();
  [[noreturn]] void report_stall(Watchdog::Timeout timeout);
  [[noreturn]] void end_job() const;
  void send(int rank, Tag tag) const;
  std::string status() const;
  bool can_talk() const { return talks_ && ranks_ > 1; }

  std::shared_ptr<Watchdog> watchdog_;
  MpiLink link_;
  int rank_ = 0, ranks_ = 1;
  bool talks_ = false;               ///< this MPI may be called by any thread
  bool silenced_ = false;            ///< another rank has said why the job ends
  std::vector<bool> heard_;          ///< an alarm or an answer, by rank
  int lowest_alarm_;                 ///< rank of the lowest other one that has stalled; ranks_: none
  Watchdog::Clock::time_point end_;  ///< when an alarmed rank ends the job itself; max: not alarmed
  Watchdog::Clock::time_point signalled_;
  Watchdog::Clock::duration stopped_{};  ///< how long the process stood still the last time
  std::jthread thread_;
};

}  // namespace annulus::comm
