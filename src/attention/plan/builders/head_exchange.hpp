#pragma once

#include <string>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// Turns a plan between Ulysses groups into one between ranks. `between` is a ring over keys whose "ranks"
/// are the Ulysses groups of `grid` and whose shards are theirs. Before it, the ranks of a group exchange
/// rows of all heads for all rows of some heads (all-to-all, as pairwise messages); then each rank does what
/// the plan says for its heads and all rows of the group; after it, results return to their owners. K/V heads
/// go to every rank with a query head of theirs, and the owner sums up the gradients of a shared one.
///
/// Throws Error naming `schedule` when there are fewer query heads than ranks of a group.
Plan exchange_heads(std::string schedule, const Problem& problem, const Grid& grid, const Plan& between);

}  // namespace annulus::plan
