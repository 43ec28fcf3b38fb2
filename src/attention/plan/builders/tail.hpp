#pragma once

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// Into how many parts overlap_tail cuts the last computes of a plan whose `gradient` returns to its owner
/// after them: at most 4, with whole kv heads, and messages of 16 MiB or more, beside which the start of a
/// message counts for nothing.
int tail_parts(const Problem& problem, Tensor gradient);

/// The plan with its last computes, those of step `last_compute`, cut into `parts` by heads, a step each:
/// gradients that are sent after them set out part by part, while the next part computes. Step 0 leaves out
/// its last part, whose shards are this rank's own, and the rank computes it while the last gradients travel.
/// Bytes are those of `plan`; there are `parts` − 1 steps more.
///
/// After `last_compute` only gradients may be sent, of all heads, and none that step 0 adds to.
Plan overlap_tail(const Plan& plan, int last_compute, int parts);

}  // namespace annulus::plan
