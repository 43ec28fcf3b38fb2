#pragma once

#include <annulus/comm/agreement.hpp>
#include <annulus/comm/communicator.hpp>
#include <annulus/plan/plan.hpp>

/// What all ranks make sure of together before the first message of a plan, beside its proof.
/// comm/agreement.hpp has the means.
namespace annulus::distributed {

/// Everything a problem is made of: two problems are the same exactly when these facts are. Takes no longer
/// where the mask has many documents or blocks.
comm::Facts facts_of(const plan::Problem& problem);

/// Everything that the ranks of a pair of plans must have alike.
comm::Facts facts_of(const plan::Plan& forward, const plan::Plan& backward);

/// Throws Error naming what differs unless the plans solve one problem.
void require_one_problem(const plan::Plan& forward, const plan::Plan& backward);

}  // namespace annulus::distributed
