#pragma once

#include <annulus/plan/plan.hpp>

namespace annulus::plan {

/// Into how many parts overlap_tail cuts the last computes of a plan whose `gradient` comes home behind them:
/// at most 4, with whole kv heads, and messages of 16 MiB or more, beside which the start of a message counts
/// for nothing.
int tail_parts(const Problem& problem, Tensor gradient);

/// The plan with its last computes, those of step `last_compute`, cut into `parts` by heads, a step each:
/// gradients that travel behind them set out part by part, while the next part computes. Only the last part
/// travels with no compute left to hide it. Bytes and sums are those of `plan`; there are `parts` − 1 steps
/// more.
///
/// Behind `last_compute` nothing but gradients may travel, of all heads.
Plan overlap_tail(const Plan& plan, int last_compute, int parts);

}  // namespace annulus::plan
