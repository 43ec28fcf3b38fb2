#include <annulus/distributed/exchange_memory.hpp>

#include "distributed/exchange_layout.hpp"
#include "distributed/program.hpp"

namespace annulus::distributed {

std::int64_t exchange_memory(std::span<const Plans> plans, int rank) {
  if (plans.empty()) return 0;
  PassCapacity capacity;
  for (const Plans& of_sequence : plans) {
    const auto cover = [&](const plan::Plan& plan) {
      // How computes are cut changes no buffer.
      capacity.of(plan.pass).cover(make_program(plan, rank, Cutting{}).capacity);
    };
    cover(of_sequence.forward);
    cover(of_sequence.backward);
    if (of_sequence.recompute) cover(*of_sequence.recompute);
  }
  const DType activation = plans.front().forward.problem.activation;
  return static_cast<std::int64_t>(exchange_layout(capacity, activation).bytes);
}

}  // namespace annulus::distributed
