#include <annulus/plan/schedules.hpp>

#include "plan/builders/circulation.hpp"

namespace annulus::plan {

Plan make_ring(const Problem& problem, Pass pass) {
  return circulate("ring", problem, pass, circulate_kv(pass), {.inner_size = problem.ranks()});
}

}  // namespace annulus::plan
