#include <annulus/plan/schedules.hpp>

#include "plan/circulation.hpp"

namespace annulus::plan {

Plan make_ring(const Problem& problem, Pass pass) {
  Travellers travellers{Side::key, {Tensor::k, Tensor::v}, {}};
  if (pass == Pass::backward) travellers.gradients = {Tensor::dk, Tensor::dv};
  return circulate("ring", problem, pass, std::move(travellers));
}

}  // namespace annulus::plan
