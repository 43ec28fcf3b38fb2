#pragma once

#include <string>

#include <annulus/plan/plan.hpp>

namespace annulus::distributed {

struct Program;
struct ProgramStep;

/// What profilers call a step and its parts: "burst backward step 3", "burst backward step 3: compute q of
/// shard 1 with k, v of shard 1".
struct StepNames {
  std::string step, wait, post, compute;
};

/// Of step `number`, which `step` is the last one of; `planned` is where it comes from.
StepNames name_step(const Program& program, const ProgramStep& step, int number, const plan::Step& planned);

}  // namespace annulus::distributed
