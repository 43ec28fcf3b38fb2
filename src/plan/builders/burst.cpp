#include <annulus/plan/schedules.hpp>

#include "plan/builders/circulation.hpp"

namespace annulus::plan {

Plan make_burst(const Problem& problem, Pass pass) {
  return circulate("burst", problem, pass, pass == Pass::forward ? circulate_kv(pass) : circulate_q(),
                   {.inner_size = problem.ranks()});
}

}  // namespace annulus::plan
