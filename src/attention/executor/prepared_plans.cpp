#include "attention/executor/prepared_plans.hpp"

#include <fmt/ranges.h>

#include <utility>

#include <annulus/base/error.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/executor/agreement.hpp"
#include "attention/kernels/check.hpp"
#include "attention/plan/validate/partition.hpp"

namespace annulus::executor {

namespace {

/// Throws Error where plans cannot be run together, or not so.
void check(const Plans& plans, const Preparation& preparation) {
  const auto& [forward, backward, recompute] = plans;
  forward.problem.check();
  require(forward.pass == plan::Pass::forward && (!backward || backward->pass == plan::Pass::backward),
          "distributed attention takes a plan of the forward and one of the backward pass, in this order");
  require(forward.problem.positions == 0,
          "the plan '{}' is for the first {} positions alone: give it as Plans::recompute, beside plans of "
          "both passes for all positions",
          forward.schedule, forward.problem.positions);
  require(!recompute || recompute->pass == plan::Pass::forward,
          "what computes attention again is a plan of the forward pass, but Plans::recompute is one of the "
          "backward pass");
  require(forward.problem.ranks() == preparation.ranks,
          "the plan '{}' is for {} ranks, but the communicator has {}: "
          "make it with the communicator's topology",
          forward.schedule, forward.problem.ranks(), preparation.ranks);
  require_one_problem(plans);
  const std::vector<std::string> wrong = plan::partition_violations(forward.problem);
  require(wrong.empty(), "the layout {} deals out no whole sequence: {}", forward.problem.layout.to_string(),
          fmt::join(wrong, "; "));
  if (recompute) recompute->problem.check();
  require(forward.problem.dtype == preparation.dtype,
          "the plan moves activations as {}, but q, k, v and d_out are {}: set Problem::dtype",
          name_of(forward.problem.dtype), name_of(preparation.dtype));
  attention::check_head_dim(forward.problem.head_dim);
  attention::check_head_dim(forward.problem.columns(plan::Tensor::v), "v_head_dim");
}

/// Sets LocalCall::pairs of all calls. Kernels that compute do not need it, and counting takes time.
void count_pairs(Program& program, const Settings& settings) {
  const plan::Problem& problem = program.plan.problem;
  for (ProgramStep& step : program.steps) {
    for (LocalCall& call : step.computes) {
      const plan::HeadRange heads{static_cast<int>(call.first_head),
                                  static_cast<int>(call.first_head + call.q.heads)};
      const std::int64_t pairs =
          settings.synthetic_pairs
              ? settings.synthetic_pairs(problem, call.q_positions, call.kv_positions, heads)
              : problem.mask.pairs(call.q_positions, call.kv_positions) * call.q.heads;
      call.pairs = pairs * call.q.batch;
    }
  }
}

}  // namespace

PreparedPlans::PreparedPlans(Plans plans, const Preparation& preparation) : plans_(std::move(plans)) {
  try {
    check(plans_, preparation);
    for (const plan::Plan* plan : plans_.all()) {
      auto program = std::make_shared<Program>(make_program(*plan, preparation.rank, preparation.cutting));
      if (preparation.settings.synthetic_kernel) count_pairs(*program, preparation.settings);
      proofs_.emplace_back(*program, preparation.ranks);
      programs_.push_back(std::move(program));
    }
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

void agree(comm::Communicator& communicator, std::span<const std::shared_ptr<const PreparedPlans>> prepared) {
  std::vector<const Plans*> plans;
  std::string problem = prepared.empty() ? no_plans : "";
  for (const auto& of_sequence : prepared) {
    plans.push_back(&of_sequence->plans());
    if (problem.empty()) problem = of_sequence->problem();
  }
  comm::require_agreement(communicator, facts_of(plans));
  comm::throw_together(communicator, problem);
  std::vector<const Program*> programs;
  std::vector<const ProgramProof*> proofs;
  for (const auto& of_sequence : prepared) {
    for (const auto& program : of_sequence->programs()) programs.push_back(program.get());
    for (const ProgramProof& proof : of_sequence->proofs()) proofs.push_back(&proof);
  }
  prove_together(communicator, programs, proofs);
}

}  // namespace annulus::executor
