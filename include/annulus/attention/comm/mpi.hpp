#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::comm {

class MpiWatchdog;

/// MPI for the life of the object (MPI_Init_thread … MPI_Finalize). One a process, made in main before Kokkos
/// is initialized. Kokkos and MPI objects die before it. Where MPI is initialized already it is used as it is
/// and left running. MPI_THREAD_MULTIPLE is asked for; an MPI that gives less serves as long as only the
/// thread that made this object communicates (other threads get an Error), and one that gives less than
/// MPI_THREAD_FUNNELED is refused. Throws Error naming the launcher where that has started several processes
/// and MPI sees one; ends the process, naming ranks, where MPI does not start (docs/running.md).
///
/// Destruction while an exception unwinds the stack does not finalize MPI, which would wait for ranks that
/// wait for this one: catch inside the life of the object and call abort.
class MpiEnvironment {
 public:
  /// What the process does. A launcher of whose ranks MPI sees one is no matter for an answer (--help): rank
  /// 0 gives it, the others end with exit status 0. Without a launcher MPI is not started for an answer, and
  /// there is no world.
  enum class For : std::uint8_t { all_ranks, an_answer };
  explicit MpiEnvironment(For what = For::all_ranks);
  MpiEnvironment(int& argc, char**& argv, For what = For::all_ranks);
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// All ranks of the job. `ranks_per_node` > 0 overrides what the machine says about nodes, so that one
  /// machine can stand for several. description() ends with `remark`. Collective. Throws Error on all ranks
  /// when they disagree about it, when it is negative or larger than the job, and when the ranks of a machine
  /// are not consecutive.
  std::unique_ptr<Communicator> world(int ranks_per_node = 0, const std::string& remark = {}) const;

  /// From now on no rank may wait longer than `timeout` at a time, in whatever it waits, unless a scope of
  /// its Watchdog sets another timeout; zero: for ever. A rank that does writes to stderr what it is doing
  /// and for which messages of whom it waits; all ranks that still run, computing ones too, say what they are
  /// doing, those that do not answer are named, and the job ends with exit status 1, within a few seconds. A
  /// rank that is sent SIGTERM, as launchers do when another rank has died, says where it waits before it
  /// ends.
  ///
  /// Costs a thread that looks ten times a second. Time during which the process was stopped does not count.
  void set_stall_timeout(std::chrono::milliseconds timeout) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Ranks of this job on this machine that may run on cores of this rank (1 when each is bound to its own):
  /// what host threads are divided by, see annulus::kokkos_settings.
  int ranks_sharing_cores() const { return ranks_sharing_cores_; }

  /// Writes "annulus: rank R: message" to stderr, as one line, and ends all ranks with exit status 1. When
  /// several ranks fail together the lowest speaks for all where it is fast enough: the others hold their
  /// line back for a moment that grows with the rank, at most a second and a half.
  [[noreturn]] void abort(const std::string& message) const;

 private:
  int rank_ = 0, size_ = 1, ranks_sharing_cores_ = 1, exceptions_ = 0;
  bool finalize_ = false;
  std::unique_ptr<MpiWatchdog> watchdog_;
};

}  // namespace annulus::comm
