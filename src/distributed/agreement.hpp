#pragma once

#include <cstdint>
#include <string>

#include <annulus/comm/communicator.hpp>
#include <annulus/plan/plan.hpp>

#include "distributed/program.hpp"

/// What all ranks make sure of together before the first message of a plan. Every function here is
/// collective.
namespace annulus::distributed {

/// Everything a problem is made of, as text: two problems are the same exactly when their texts are.
std::string describe(const plan::Problem& problem);

/// Throws Error on all ranks when `problem` (a message, or nothing) is not empty on one: the message of the
/// lowest such rank.
void throw_together(comm::Communicator& communicator, const std::string& problem);

/// Throws Error on all ranks unless all have the same `text`; `what` names it in the message.
void require_equal(comm::Communicator& communicator, const std::string& text, const char* what);

/// Throws Error on all ranks unless, for every pair of ranks and channel, what one is about to send (sizes,
/// pieces, wire types, in order) is what the other is about to receive.
void require_matching(comm::Communicator& communicator, const Program& program);

}  // namespace annulus::distributed
