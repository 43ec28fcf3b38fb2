#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "attention/comm/watchdog.hpp"
#include "attention/executor/proof/program.hpp"

namespace annulus::executor {

/// A program, and words for where in it a rank is and for what it waits. Transfers that go on without the
/// host share it, so that they can be told of when the pass that posted them is over for the host.
class PlanText {
 public:
  PlanText(const comm::Communicator& communicator, std::shared_ptr<const Program> program);

  const Program& program() const { return *program_; }

  /// "ring backward, in plan step 2 of 0 to 4, ".
  std::string where(int step) const;

  /// Which slices of an exchange from and to whom the rank waits for, and from which step of such a peer the
  /// last message has come. `completed`: the exchanges of the program that have.
  std::string wait(int exchange, const std::vector<bool>& completed, const comm::Watchdog::Wait& wait) const;

 private:
  /// What is missing of an exchange from one peer: indices of its receives and sends.
  struct Lack {
    std::vector<std::size_t> receives, sends;
  };
  using ByChannel = std::array<std::vector<int>, plan::channel_count>;

  std::string describe_peer(int waited, const std::vector<bool>& completed, int peer, const Lack& lack) const;
  /// The steps that post the messages from `peer` to this rank, in the order of the messages.
  ByChannel posting_steps(int peer) const;
  std::string name_of_rank(int rank) const;

  std::shared_ptr<const Program> program_;
  std::vector<int> world_ranks_;  // numbers in the whole job of the communicator's ranks
};

/// Tells, whoever asks, where in a pass of a plan this rank is, and for which slices from and to whom it
/// waits. What is told is put together when asked for; the executor only leaves marks.
class PlanActivity {
 public:
  /// Sets the timeout of waits for the life of the object: no wait of the pass may last longer than
  /// `timeout`; zero: for ever.
  PlanActivity(comm::Watchdog* watchdog, std::shared_ptr<const PlanText> text,
               comm::Watchdog::Timeout timeout);

  enum class Phase : std::uint8_t { accepts, posts, waits, computes };
  /// What comes now. `exchange`: what is posted or waited for.
  void enter(int step, Phase phase, int exchange = -1);
  /// The exchange that was waited for has completed.
  void completed(int exchange);

 private:
  std::string describe(const comm::Watchdog::Wait* wait) const;
  /// What will be said of the exchange that is posted now. Exchanges of its channel complete in their order;
  /// of others nothing will be known.
  comm::Watchdog::Describe note() const;

  std::shared_ptr<const PlanText> text_;
  mutable std::mutex mutex_;
  int step_ = 0, exchange_ = -1;
  Phase phase_ = Phase::accepts;
  comm::Watchdog::Clock::time_point since_;
  std::vector<bool> completed_;  // by exchange
  const comm::Watchdog::ActivityScope activity_;
};

}  // namespace annulus::executor
