#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <annulus/plan/plan.hpp>

namespace annulus::plan {

/// Ring attention. Forward: K and V travel, (O, LSE) stays (BurstEngine §3.1). Backward: K, V, dK, dV travel
/// (BurstEngine Algorithm 1).
Plan make_ring(const Problem& problem, Pass pass);

/// BurstAttention. The forward is ring attention's; in the backward Q, dO, LSE, D and dQ travel while K, V, dK
/// and dV stay (BurstEngine Algorithm 2), the dQ ring one hop behind.
Plan make_burst(const Problem& problem, Pass pass);

/// Names that make_plan knows, in the order in which help texts list them.
std::vector<std::string> schedule_names();

/// Makes a plan by name. Throws Error naming `field` and the known names when there is no such schedule.
Plan make_plan(std::string_view name, const Problem& problem, Pass pass, std::string_view field = "schedule");

}  // namespace annulus::plan
