#include "attention/plan/text.hpp"

#include <fmt/format.h>

namespace annulus::plan {

std::string describe_slot(Slot slot) {
  return slot == local_slot ? "local" : fmt::format("slot {}", slot);
}

std::string describe(const TensorSlice& slice) {
  return fmt::format("{}[{}] rows {}:{} heads {}:{}", name_of(slice.tensor), slice.owner, slice.rows.begin,
                     slice.rows.end, slice.heads.begin, slice.heads.end);
}

std::string describe(const std::vector<TensorSlice>& slices) {
  std::string text;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    TensorSlice as_next = slices[i];
    if (i + 1 < slices.size()) as_next.tensor = slices[i + 1].tensor;
    const bool joins = i + 1 < slices.size() && as_next == slices[i + 1];
    text += joins ? std::string(name_of(slices[i].tensor)) : describe(slices[i]);
    if (i + 1 < slices.size()) text += ", ";
  }
  return text;
}

std::string describe(const Compute& compute) {
  return fmt::format("compute q[{}] rows {}:{} x kv[{}] rows {}:{} heads {}:{}", compute.q_shard,
                     compute.q_rows.begin, compute.q_rows.end, compute.kv_shard, compute.kv_rows.begin,
                     compute.kv_rows.end, compute.heads.begin, compute.heads.end);
}

std::string describe(const Clear& clear) {
  return fmt::format("clear {} in {}", describe(clear.slice), describe_slot(clear.slot));
}

std::string describe_send(const Transfer& send) {
  return fmt::format("send {} from {} to rank {}", describe(send.slice), describe_slot(send.slot), send.peer);
}

std::string describe_receive(const Transfer& receive) {
  std::string text = fmt::format("receive {} from rank {} into {}", describe(receive.slice), receive.peer,
                                 describe_slot(receive.slot));
  if (receive.on_receive != OnReceive::store) {
    text += fmt::format(", {} to {}", name_of(receive.on_receive), describe_slot(receive.target));
  }
  return text;
}

namespace {

void print_compute(std::string& text, const Compute& compute, Pass pass) {
  text += fmt::format("    {}; q {}, kv {}, {} {}", describe(compute), describe_slot(compute.q_slot),
                      describe_slot(compute.kv_slot), pass == Pass::forward ? "o" : "dq",
                      describe_slot(compute.out_slot));
  if (pass == Pass::backward) text += fmt::format(", dkv {}", describe_slot(compute.kv_grad_slot));
  text += '\n';
}

void print_rank(std::string& text, const Plan& plan, int rank) {
  text += fmt::format("rank {} (node {})\n", rank, plan.problem.topology.node(rank));
  for (int s = 0; s < plan.steps; ++s) {
    const Step step = plan.step(rank, s);
    text += fmt::format("  step {}\n", s);
    for (const Clear& clear : step.clears) text += fmt::format("    {}\n", describe(clear));
    const auto print_transfer = [&text](const std::string& what, const Transfer& transfer) {
      text += fmt::format("    {}; {}, {}, wait {}\n", what, name_of(transfer.wire),
                          name_of(transfer.channel), transfer.wait);
    };
    for (const Transfer& send : step.sends) print_transfer(describe_send(send), send);
    for (const Transfer& receive : step.receives) print_transfer(describe_receive(receive), receive);
    for (const Compute& compute : step.computes) print_compute(text, compute, plan.pass);
  }
}

std::string header(const Plan& plan) {
  const Problem& problem = plan.problem;
  const std::string grid = problem.grid.ulysses_degree == 1
                               ? ""
                               : fmt::format(" in Ulysses groups of {} ({})", problem.grid.ulysses_degree,
                                             name_of(problem.grid.placement));
  return fmt::format(
      "{} {}: {} steps, {}{}, {} tokens, layout {}, mask {}, {} heads ({} kv) of {}, batch {}, {}\n",
      plan.schedule, plan.pass_text(), plan.steps, problem.topology.to_string(), grid, problem.mask.tokens(),
      problem.layout.to_string(), problem.mask.to_string(), problem.heads, problem.kv_heads,
      problem.text_of_head_dims(), problem.batch, name_of(problem.dtype));
}

}  // namespace

std::string to_string(const Plan& plan) {
  std::string text = header(plan);
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) print_rank(text, plan, rank);
  return text;
}

std::string to_string(const Plan& plan, int rank) {
  std::string text = header(plan);
  print_rank(text, plan, rank);
  return text;
}

}  // namespace annulus::plan
