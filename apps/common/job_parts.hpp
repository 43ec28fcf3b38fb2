#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::app {

/// The first ranks of a job, for programs that measure one case after the other on some of its ranks.
class JobParts {
 public:
  /// `world` outlives this.
  explicit JobParts(comm::Communicator& world) : world_(world) {}

  bool has(int ranks) const { return world_.rank() < ranks; }  ///< this rank is one of the first `ranks`

  /// The first `ranks` ranks; on the others those that have no part. Collective over the job.
  comm::Communicator& of(int ranks);

  /// Ends what the first `ranks` ranks did: the others wait for rank 0 without taking a core from them, as a
  /// collective that spins would. Returns what rank 0 gives. Collective over the job.
  std::int32_t end(int ranks, std::int32_t outcome = 0);

 private:
  comm::Communicator& world_;
  std::map<int, std::unique_ptr<comm::Communicator>> made_;
};

}  // namespace annulus::app
