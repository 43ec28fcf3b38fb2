#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <annulus/comm/watchdog.hpp>

#include "distributed/plan_text.hpp"

namespace annulus::distributed {

/// Tells, whoever asks, where in a pass of a plan this rank is, and for which slices from and to whom it
/// waits. What is told is put together when asked for; the executor only leaves marks.
class PlanActivity {
 public:
  /// For the life of the object. No wait of the pass may last longer than `timeout`; zero: for ever.
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

}  // namespace annulus::distributed
