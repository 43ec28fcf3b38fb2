#include <annulus/distributed/exchange_memory.hpp>

#include "distributed/program.hpp"

namespace annulus::distributed {

std::int64_t exchange_memory(std::span<const Plans> plans, int rank) {
  if (plans.empty()) return 0;
  Capacity capacity;
  for (const Plans& of_sequence : plans) {
    const auto cover = [&](const plan::Plan& plan) {
      // How computes are cut changes no buffer.
      capacity.cover(make_program(plan, rank, Cutting{}).capacity);
    };
    cover(of_sequence.forward);
    cover(of_sequence.backward);
    if (of_sequence.recompute) cover(*of_sequence.recompute);
  }
  const DType activation = plans.front().forward.problem.activation;
  std::int64_t bytes = 0;
  for (std::size_t t = 0; t < capacity.slots.size(); ++t)
    for (std::size_t slot = 1; slot < capacity.slots[t].size(); ++slot)
      bytes += static_cast<std::int64_t>(capacity.slot_bytes(static_cast<plan::Tensor>(t), slot, activation));
  for (const std::size_t staging : capacity.staging) bytes += static_cast<std::int64_t>(staging);
  return bytes;
}

}  // namespace annulus::distributed
