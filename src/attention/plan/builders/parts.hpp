#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/error.hpp>

#include "attention/plan/needs/shard_pairs.hpp"

/// Parts of steps that builders put together.
namespace annulus::plan {

/// The largest divisor of `number` that is at most `most`; 1 when `most` is less.
inline int largest_divisor(int number, int most) {
  int divisor = std::clamp(most, 1, number);
  while (number % divisor != 0) --divisor;
  return divisor;
}

/// Rows of a shard, with all heads of the tensor.
inline TensorSlice part(const Problem& problem, Tensor tensor, int owner, RowRange rows) {
  return {tensor, owner, rows, {0, is_query_side(tensor) ? problem.heads : problem.kv_heads}};
}

/// One side of a message that travels from step `post` to the next one.
inline Transfer transfer(const Problem& problem, const TensorSlice& slice, Channel channel, int peer,
                         Slot slot, int post) {
  return {.slice = slice,
          .wire = problem.wire(slice.tensor),
          .channel = channel,
          .peer = peer,
          .slot = slot,
          .post = post,
          .wait = post + 1};
}

/// A receive at the owner: the sum is added to, or merged into, its local buffer.
inline Transfer return_to_owner(Transfer receive, OnReceive on_receive) {
  receive.on_receive = on_receive;
  receive.target = local_slot;
  return receive;
}

/// The plan whose steps `schedule->step(rank, step)` makes, `schedule->steps()` of them, with its period and,
/// where it has a function of this name, with what it claims as Plan::queries_stay.
template <class Schedule>
Plan lazy_plan(std::string name, const Problem& problem, Pass pass,
               std::shared_ptr<const Schedule> schedule) {
  require(
      problem.positions == 0 || pass == Pass::forward,
      "schedule {}: a backward pass of the first {} positions alone is not planned: only attention's output "
      "is computed again for them; use the forward pass",
      name, problem.positions);
  Plan plan;
  plan.schedule = std::move(name);
  plan.pass = pass;
  plan.problem = problem;
  plan.steps = schedule->steps();
  plan.period = schedule->period();
  if constexpr (requires { schedule->queries_stay(); }) plan.queries_stay = schedule->queries_stay();
  plan.step = [schedule = std::move(schedule), ranks = problem.ranks()](int rank, int step) {
    require(rank >= 0 && rank < ranks, "plan: rank {} is not one of the {} ranks", rank, ranks);
    require(step >= 0 && step < schedule->steps(), "plan: step {} is not one of the {} steps", step,
            schedule->steps());
    return schedule->step(rank, step);
  };
  return plan;
}

/// All heads of the active rows of two shards, all in the local buffers.
inline Compute compute(const Problem& problem, int q, int kv, const ActiveRows& active) {
  return {
      .q_shard = q, .kv_shard = kv, .q_rows = active.q, .kv_rows = active.kv, .heads = {0, problem.heads}};
}

}  // namespace annulus::plan
