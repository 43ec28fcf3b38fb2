#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/comm/watch.hpp>
#include <annulus/plan/plan.hpp>

#include "distributed/program.hpp"

namespace annulus::distributed {

/// Tells, whoever asks, where in a pass of a plan this rank is, for which pieces from and to whom it waits,
/// and from which step of such a peer the last message has come. What is told is put together when asked for;
/// the executor only leaves marks.
class PlanWatch {
 public:
  /// For the life of the object. No wait of the pass may last longer than `limit`; zero: for ever.
  PlanWatch(const comm::Communicator& communicator, const Program& program, comm::Watch::Limit limit);

  enum class Phase : std::uint8_t { accepts, posts, waits, computes };
  /// What comes now. `exchange`: what is waited for.
  void enter(int step, Phase phase, int exchange = -1);
  /// The exchange that was waited for has completed.
  void completed(int exchange);

 private:
  /// What is missing of an exchange from one peer: indices of its receives and sends.
  struct Lack {
    std::vector<std::size_t> receives, sends;
  };
  using ByChannel = std::array<std::vector<int>, plan::channel_count>;

  std::string tell(const comm::Watch::Wait* wait) const;
  std::string tell_wait(const comm::Watch::Wait& wait) const;
  std::string tell_peer(int peer, const Lack& lack) const;
  /// For all messages from `peer` to this rank, in order, the step that posts them.
  ByChannel posting_steps(int peer) const;
  std::string name_of_rank(int rank) const;

  const comm::Communicator& communicator_;
  const Program& program_;
  mutable std::mutex mutex_;
  int step_ = 0, exchange_ = -1;
  Phase phase_ = Phase::accepts;
  comm::Watch::Clock::time_point since_;
  std::vector<bool> completed_;  // by exchange
  const comm::Watch::Doing doing_;
};

}  // namespace annulus::distributed
