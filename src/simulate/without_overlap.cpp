#include <annulus/simulate/simulate.hpp>

#include <utility>

namespace annulus::simulate {

plan::Plan without_overlap(const plan::Plan& plan) {
  plan::Plan result = plan;
  result.steps = 2 * plan.steps;
  result.step = [of = plan.step](int rank, int index) {
    plan::Step step = of(rank, index / 2);
    if (index % 2 != 0) {
      plan::Step compute;
      compute.computes = std::move(step.computes);
      return compute;
    }
    for (auto* transfers : {&step.sends, &step.receives}) {
      for (plan::Transfer& transfer : *transfers) {
        transfer.post = index;
        transfer.wait = index + 1;
      }
    }
    step.computes.clear();
    return step;
  };
  return result;
}

}  // namespace annulus::simulate
