#pragma once

#include <string>

#include <annulus/plan/plan.hpp>

namespace annulus::plan {

/// Turns a plan between context groups into one between ranks. `between` is a ring over keys whose "ranks"
/// are the context groups of `grid` and whose shards are theirs. Before it, the ranks of a group exchange
/// rows of all heads for all rows of some heads (all-to-all, as pairwise messages); then each rank does what
/// the plan says for its heads and all rows of the group; behind it, results go home. K/V heads go to every
/// rank with a query head of theirs, and the gradients of a shared one are summed up at home.
///
/// Throws Error naming `schedule` when there are fewer query heads than ranks of a group.
Plan exchange_heads(std::string schedule, const Problem& problem, const Grid& grid, const Plan& between);

}  // namespace annulus::plan
