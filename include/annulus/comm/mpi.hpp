#pragma once

#include <memory>
#include <string>

#include <annulus/comm/communicator.hpp>

namespace annulus::comm {

/// MPI for the life of the object (MPI_Init_thread … MPI_Finalize). One a process, made in main before Kokkos is
/// initialized. Kokkos and MPI objects die before it.
class MpiEnvironment {
 public:
  MpiEnvironment(int& argc, char**& argv);
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  /// All ranks of the job. `ranks_per_node` > 0 overrides what the machine says about nodes, so that one machine
  /// can stand for several. Throws Error on all ranks when they disagree about it or ranks of a node are not consecutive.
  std::unique_ptr<Communicator> world(int ranks_per_node = 0) const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Ranks of this job on this machine: what threads are divided by.
  int ranks_on_this_machine() const { return ranks_on_this_machine_; }

  /// Writes "annulus: rank R: message" to stderr and ends all ranks with exit status 1.
  [[noreturn]] void abort(const std::string& message) const;

 private:
  int rank_ = 0, size_ = 1, ranks_on_this_machine_ = 1;
};

}  // namespace annulus::comm
