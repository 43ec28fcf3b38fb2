#include <annulus/plan/schedules.hpp>

#include "plan/circulation.hpp"

namespace annulus::plan {

Plan make_burst(const Problem& problem, Pass pass) {
  if (pass == Pass::forward) {
    Plan plan = make_ring(problem, pass);
    plan.schedule = "burst";
    return plan;
  }
  return circulate("burst", problem, pass,
                   {Side::query, {Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d}, {Tensor::dq}});
}

}  // namespace annulus::plan
