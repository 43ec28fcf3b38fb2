#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/plan/needs/ring_routes.hpp"

namespace annulus::plan {

/// When the sums of a circulation (gradients) are sent.
enum class SumTiming : std::uint8_t {
  none,
  overlapped,  ///< while the next round computes
  alone        ///< between rounds, while nothing computes
};

/// When the rounds of a two-level ring run. A loop is one turn of the inner rings; in its round b each rank
/// works with the shard that has come to it by inner hop b, in loop a by outer hop a. All ranks keep the same
/// time.
///
/// Sums of a round leave in the step after it; `alone`, the next round waits until they have arrived. Sums of
/// a loop are complete one step after its end, leave for the next inner ring then, and arrive when the next
/// loop ends; `alone`, they leave and arrive between the two loops.
class Timetable {
 public:
  /// `rounds` of each loop, of rings of `inner_size` ranks.
  Timetable(std::vector<int> rounds, int inner_size, SumTiming sums);

  int loops() const { return static_cast<int>(starts_.size()) - 2; }

  /// Step that computes a round.
  int computing(Hop round) const { return start(round.outer) + stride() * round.inner; }
  /// Round that a step computes.
  std::optional<Hop> round_computed(int step) const;

  /// Loop that begins with a step: the inputs of the next one leave for the next inner ring.
  std::optional<int> loop_begun(int step) const;
  /// Step that waits for these inputs.
  int inputs_arrive(int loop) const { return start(loop + 1) - (sums_ == SumTiming::alone ? 1 : 0); }

  /// Loop whose sums leave for the next inner ring in a step.
  std::optional<int> loop_summed(int step) const;
  /// Step that waits for the sums of a loop.
  int sums_arrive(int loop) const { return start(sums_ == SumTiming::alone ? loop + 1 : loop + 2); }

 private:
  int start(int loop) const { return starts_[static_cast<std::size_t>(loop)]; }
  int stride() const { return sums_ == SumTiming::alone ? 2 : 1; }
  /// Steps from the beginning of a loop to that in which the sums of the loop before leave.
  int lag() const;

  std::vector<int> rounds_;  // of each loop, and of one more
  std::vector<int> starts_;  // of each loop, and of the two that would follow
  int inner_size_;
  SumTiming sums_;
};

}  // namespace annulus::plan
