#pragma once

#include <cstdint>
#include <string>

#include <annulus/comm/communicator.hpp>
#include <annulus/plan/plan.hpp>

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

}  // namespace annulus::distributed
