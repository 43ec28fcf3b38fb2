#pragma once

#include <annulus/attention/plan/plan.hpp>

namespace annulus::test {

/// A plan for two ranks and a causal mask in the contiguous layout, made by hand, as no ring is: rank 1 has
/// rank 0 do some of its rows and heads. Rank 1 sends these queries, a part of its shard, and gets partial
/// results back, which it merges (forward) or adds (backward); for the rest it fetches rank 0's keys and
/// values. In the forward pass rank 0 keeps only `helped` heads and sends on what it has computed in two
/// parts, out of one slot.
plan::Plan make_helper(const plan::Problem& problem, plan::Pass pass, RowRange rows, plan::HeadRange heads);

}  // namespace annulus::test
