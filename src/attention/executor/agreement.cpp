#include "attention/executor/agreement.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>

namespace annulus::executor {

namespace {

constexpr std::string_view remedy = "give every rank the same configuration and data";

/// The first fact in which two problems differ.
struct ProblemDifference {
  std::string key, a, b;
};
std::optional<ProblemDifference> difference(const plan::Problem& a, const plan::Problem& b) {
  const comm::Facts of_a = facts_of(a), of_b = facts_of(b);
  for (std::size_t i = 0; i < of_a.all().size(); ++i)
    if (of_a.all()[i].value != of_b.all()[i].value)
      return ProblemDifference{of_a.all()[i].key, of_a.all()[i].value, of_b.all()[i].value};
  return std::nullopt;
}

/// What of a sequence is computed again.
std::string first_positions(const Plans& plans) {
  if (!plans.recompute || plans.recompute->problem.positions == 0) return "for all positions";
  return fmt::format("for the first {} positions", plans.recompute->problem.positions);
}

}  // namespace

comm::Facts facts_of(const plan::Problem& p) {
  comm::Facts facts;
  const auto list = [](std::span<const std::int64_t> numbers, std::uint64_t fingerprint) {
    return numbers.empty() ? std::string("none")
                           : fmt::format("{} of them, fingerprint {:016x}", numbers.size(), fingerprint);
  };
  facts.add("the nodes of the ranks", p.topology.to_string(), remedy);
  facts.add("the Ulysses groups", fmt::format("of {}, {}", p.grid.ulysses_degree, name_of(p.grid.placement)),
            remedy);
  facts.add("the layout", p.layout.to_string(), remedy);
  if (!p.layout.runs().empty())
    facts.add("the rows of the ranks", fmt::format("fingerprint {:016x}", p.layout.cut_fingerprint()),
              remedy);
  facts.add("the sequence length", p.mask.tokens(), remedy);
  facts.add("the mask", p.mask.outline(), remedy);
  facts.add("the mask's document starts", list(p.mask.document_starts(), p.mask.documents_fingerprint()),
            remedy);
  facts.add("the mask's blocks", list(p.mask.block_columns(), p.mask.blocks_fingerprint()), remedy);
  facts.add("the positions that take part",
            p.positions == 0 ? std::string("all") : fmt::format("the first {}", p.positions), remedy);
  facts.add("the query heads", p.heads, remedy);
  facts.add("the kv heads", p.kv_heads, remedy);
  facts.add("head_dim", p.head_dim, remedy);
  facts.add("v_head_dim", p.columns(plan::Tensor::v), remedy);
  facts.add("the batch", p.batch, remedy);
  facts.add("the dtype", name_of(p.dtype), remedy);
  return facts;
}

comm::Facts facts_of(std::span<const Plans* const> plans) {
  comm::Facts facts;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const std::string whose = plans.size() == 1 ? "" : fmt::format(" of sequence {} of the batch", i);
    const auto& [forward, backward, recompute] = *plans[i];
    const auto in_steps = [](const plan::Plan& plan) {
      return fmt::format("{} in {} steps", plan.schedule, plan.steps);
    };
    facts.add("the plan of the forward pass" + whose, in_steps(forward), remedy);
    facts.add("the plan of the backward pass" + whose, backward ? in_steps(*backward) : "none", remedy);
    const std::string again = recompute ? fmt::format("{} {} in {} steps", recompute->schedule,
                                                      recompute->pass_text(), recompute->steps)
                                        : std::string("none of its own");
    facts.add(fmt::format("the plan that computes attention again{}", whose), again, remedy);
    const comm::Facts of_problem = facts_of(forward.problem);
    for (const comm::Facts::Fact& fact : of_problem.all())
      facts.add(fact.key + whose, fact.value, fact.remedy);
  }
  return facts;
}

std::vector<const plan::Plan*> Plans::all() const {
  std::vector<const plan::Plan*> plans{&forward};
  for (const std::optional<plan::Plan>* plan : {&backward, &recompute})
    if (*plan) plans.push_back(&**plan);
  return plans;
}

void require_one_problem(const Plans& plans) {
  const auto& [forward, backward, recompute] = plans;
  if (const auto found = backward ? difference(forward.problem, backward->problem) : std::nullopt)
    fail("the forward and the backward plan solve different problems: {} is {} and {}", found->key, found->a,
         found->b);
  if (!recompute) return;
  if (const auto found = difference(forward.problem, recompute->problem.of_all_positions()))
    fail(
        "the plan that computes attention again solves another problem than the forward plan: "
        "{} is {} and {}",
        found->key, found->b, found->a);
}

void require_one_batch(std::span<const Plans* const> plans) {
  const Plans& of_first = *plans.front();
  const plan::Problem& first = of_first.forward.problem;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    plan::Problem problem = plans[i]->forward.problem;
    require(problem.batch == 1,
            "{} pairs of plans are for one sequence of the batch each, but the batch of pair {} is {}: set "
            "Problem::batch = 1",
            plans.size(), i, problem.batch);
    require(problem.mask.tokens() == first.mask.tokens(),
            "the sequences of a batch have one length, but sequence 0 has {} tokens and sequence {} has {}",
            first.mask.tokens(), i, problem.mask.tokens());
    require(first_positions(*plans[i]) == first_positions(of_first),
            "attention is computed again {} of sequence 0 of the batch, but {} of sequence {}: give every "
            "sequence a plan for it of the same positions, or none",
            first_positions(of_first), first_positions(*plans[i]), i);
    require(plans[i]->backward.has_value() == of_first.backward.has_value(),
            "sequence {} of the batch has a plan of the backward pass and sequence {} has none: give one to "
            "every sequence, or to none",
            plans[i]->backward ? i : 0, plans[i]->backward ? 0 : i);
    problem.mask = first.mask;
    if (problem.layout.kind() == first.layout.kind()) problem.layout = first.layout;  // cut for the mask
    if (const auto found = difference(first, problem))
      fail(
          "the plans of the sequences of a batch differ in more than their masks: {} is {} for sequence 0 "
          "and {} for sequence {}",
          found->key, found->a, found->b, i);
  }
}

}  // namespace annulus::executor
