#pragma once

#include <span>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "attention/comm/agreement.hpp"

/// What all ranks make sure of together before the first message of a plan, beside its proof.
/// attention/comm/agreement.hpp has the means.
namespace annulus::executor {

/// Everything a problem is made of: two problems are the same exactly when these facts are. Takes no longer
/// where the mask has many documents or blocks.
comm::Facts facts_of(const plan::Problem& problem);

/// Everything that the ranks of an Attention must have alike.
comm::Facts facts_of(std::span<const Plans* const> plans);

/// Throws Error naming what differs unless the plans solve one problem, of which attention is computed again
/// for the first positions.
void require_one_problem(const Plans& plans);

/// Throws Error naming what differs unless the pairs of plans, of which there are several, are for one
/// sequence of a batch each and differ in their masks alone, and in how `balanced` is cut for these.
void require_one_batch(std::span<const Plans* const> plans);

}  // namespace annulus::executor
