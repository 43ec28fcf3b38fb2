#pragma once

#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "attention/executor/proof/program.hpp"

namespace annulus::executor {

/// Steps of a plan, read back from the program that the executor runs: slices from places in memory, what
/// becomes of a message from the actions that follow its wait. The plan that the program was made of is not
/// asked. What a proof of these steps shows is thus true of what runs. Throws Error naming schedule, rank and
/// step where the program does what no step can say: a block that is no slice of what its slot holds, a
/// message or an action that is lost, a buffer that is too small or in use.
std::vector<plan::Step> read_back(const Program& program);

}  // namespace annulus::executor
