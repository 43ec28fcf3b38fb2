#include <iterator>

#include <annulus/base/error.hpp>

#include "plan/validate/validation.hpp"

namespace annulus::plan::validation {
namespace {

/// Bytes that a script may take, and what it needs of them: measured, rounded up.
constexpr std::int64_t most_bytes = 1'700'000'000, bytes_of_step = 400, bytes_of_entry = 250;

std::int64_t bytes_of(const Step& step) {
  const auto entries = std::ssize(step.clears) + std::ssize(step.sends) + std::ssize(step.receives) +
                       std::ssize(step.computes);
  return bytes_of_step + bytes_of_entry * entries;
}

}  // namespace

ExpandedPlan::ExpandedPlan(const Scope& scope) : scope(scope) {
  const Plan& plan = scope.plan;
  steps.resize(static_cast<std::size_t>(scope.representatives()));
  std::int64_t bytes = 0;
  for (int rank = 0; rank < scope.representatives(); ++rank) {
    for (int number = 0; number < plan.steps; ++number) {
      const Step& step = steps[static_cast<std::size_t>(rank)].emplace_back(plan.step(rank, number));
      bytes += bytes_of(step);
      require(bytes <= most_bytes,
              "plan '{}' ({}): {} steps on each of {} ranks are too many to see side by side, which is "
              "needed where ranks post the two ends of a message in different steps: post them in the same "
              "step, or prove the schedule on fewer ranks",
              plan.schedule, plan.pass_text(), plan.steps, scope.representatives());
    }
  }
}

}  // namespace annulus::plan::validation
