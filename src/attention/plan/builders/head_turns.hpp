#pragma once

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// A plan of the first heads of `problem`, and what it takes to go on with the next ones.
struct HeadTurn {
  Plan plan;             ///< of problem.heads / turns query heads and problem.kv_heads / turns kv heads
  int last_compute = 0;  ///< step of its last computes
};

/// The plan in which the heads of `problem` take `turns` turns: each does what `first` does, with the next
/// heads, and begins behind the last computes of the turn before, beside the sums that this one still sends.
/// Exchange buffers are those of one turn.
Plan in_turns(const Problem& problem, HeadTurn first, int turns);

}  // namespace annulus::plan
