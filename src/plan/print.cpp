#include <fmt/format.h>

#include <iterator>

#include <annulus/plan/plan.hpp>

#include "plan/describe.hpp"

namespace annulus::plan {
namespace {

void print_compute(std::string& text, const Compute& compute, Pass pass) {
  fmt::format_to(std::back_inserter(text), "    {}; q {}, kv {}, {} {}", describe(compute),
                 describe_slot(compute.q_slot), describe_slot(compute.kv_slot),
                 pass == Pass::forward ? "o" : "dq", describe_slot(compute.out_slot));
  if (pass == Pass::backward) text += fmt::format(", dkv {}", describe_slot(compute.kv_grad_slot));
  text += '\n';
}

void print_rank(std::string& text, const Plan& plan, int rank) {
  fmt::format_to(std::back_inserter(text), "rank {} (node {})\n", rank, plan.problem.topology.node(rank));
  for (int s = 0; s < plan.steps; ++s) {
    const Step step = plan.step(rank, s);
    fmt::format_to(std::back_inserter(text), "  step {}\n", s);
    for (const Clear& clear : step.clears) text += fmt::format("    {}\n", describe(clear));
    const auto print_transfer = [&text](const std::string& what, const Transfer& transfer) {
      fmt::format_to(std::back_inserter(text), "    {}; {}, {}, wait {}\n", what, name_of(transfer.wire),
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
      problem.layout.to_string(), problem.mask.to_string(), problem.heads, problem.kv_heads, problem.head_dim,
      problem.batch, name_of(problem.activation));
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
