#pragma once

#include <array>
#include <string>
#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/plan/plan.hpp>

#include "distributed/program.hpp"

namespace annulus::distributed {

/// Names of step `number`, which `step` is the last one of; `planned` is where it comes from.
StepNames name_step(const Program& program, const ProgramStep& step, int number, const plan::Step& planned);

/// A program, and words for where in it a rank is and for what it waits. Transfers that go on without the
/// host share it, so that they can be told of when the pass that posted them is over for the host.
class PlanText {
 public:
  PlanText(const comm::Communicator& communicator, Program program);

  const Program& program() const { return program_; }

  /// "ring backward, in plan step 2 of 0 to 4, ".
  std::string where(int step) const;

  /// For which slices of an exchange from and to whom the rank waits, and from which step of such a peer the
  /// last message has come. `completed`: the exchanges of the program that have.
  std::string wait(int exchange, const std::vector<bool>& completed, const comm::Watchdog::Wait& wait) const;

 private:
  /// What is missing of an exchange from one peer: indices of its receives and sends.
  struct Lack {
    std::vector<std::size_t> receives, sends;
  };
  using ByChannel = std::array<std::vector<int>, plan::channel_count>;

  std::string describe_peer(int waited, const std::vector<bool>& completed, int peer, const Lack& lack) const;
  /// For all messages from `peer` to this rank, in order, the step that posts them.
  ByChannel posting_steps(int peer) const;
  std::string name_of_rank(int rank) const;

  Program program_;
  std::vector<int> world_ranks_;  // numbers in the whole job of the communicator's ranks
};

}  // namespace annulus::distributed
