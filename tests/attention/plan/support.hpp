#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/period.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::plan {

/// All steps of one rank.
inline std::vector<Step> rank_steps(const Plan& plan, int rank) {
  std::vector<Step> steps;
  for (int step = 0; step < plan.steps; ++step) steps.push_back(plan.step(rank, step));
  return steps;
}

/// The last step in which a rank computes.
inline int last_compute(const Plan& plan) {
  int last = 0;
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    const std::vector<Step> steps = rank_steps(plan, rank);
    for (int step = 0; step < plan.steps; ++step)
      if (!steps[static_cast<std::size_t>(step)].computes.empty()) last = std::max(last, step);
  }
  return last;
}

/// Elements of all tensors.
inline std::int64_t total_sent(const Traffic& traffic) {
  return std::accumulate(std::begin(traffic.sent), std::end(traffic.sent), std::int64_t{0});
}

/// How GoogleTest shows a plan that differs.
inline void PrintTo(const Plan& plan, std::ostream* out) {
  *out << to_string(plan);
}

}  // namespace annulus::plan

namespace annulus::plan::test {

inline Problem make_problem(int ranks, std::int64_t tokens, std::string_view layout, std::string_view mask,
                            int heads = 4, int kv_heads = 2) {
  const Mask parsed = Mask::parse(mask, tokens);
  return {.topology = Topology::uniform(ranks, 2),
          .layout = Layout::parse(layout).for_mask(parsed, ranks),
          .mask = parsed,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = 8,
          .batch = 3};
}

inline Problem on_nodes(int nodes, int ranks_per_node, std::int64_t tokens, std::string_view layout,
                        std::string_view mask) {
  const int ranks = nodes * ranks_per_node;
  Problem problem = make_problem(ranks, tokens, layout, mask);
  problem.topology = Topology::uniform(ranks, ranks_per_node);
  problem.layout = problem.layout.for_mask(problem.mask, ranks, ranks_per_node);
  return problem;
}

/// Visits every transfer that a rank sends.
inline void for_sends(const Plan& plan, const std::function<void(int rank, const Transfer&)>& visit) {
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    for (const Step& step : rank_steps(plan, rank)) {
      for (const Transfer& send : step.sends) visit(rank, send);
    }
  }
}

/// Rows of a tensor that all ranks send.
inline std::int64_t rows_sent(const Plan& plan, Tensor tensor) {
  std::int64_t rows = 0;
  for_sends(plan, [&](int, const Transfer& send) {
    if (send.slice.tensor == tensor) rows += send.slice.rows.size();
  });
  return rows;
}

/// Ranks a period apart do the same.
inline bool repeats(const Plan& plan, int period) {
  const RankShift shift(plan.problem);
  for (int rank = period; rank < plan.problem.ranks(); ++rank) {
    const int first = rank % period;
    for (int step = 0; step < plan.steps; ++step) {
      if (plan.step(rank, step) != shift.step(plan.step(first, step), rank - first)) return false;
    }
  }
  return true;
}

/// The plan with the smallest period that it has; nothing when that is all ranks.
inline std::optional<Plan> with_period(Plan plan) {
  for (int period = 1; period < plan.problem.ranks(); ++period) {
    if (plan.problem.ranks() % period != 0 || !repeats(plan, period)) continue;
    plan.period = period;
    return plan;
  }
  return std::nullopt;
}

/// A plan whose steps can be changed one by one.
struct EditedPlan {
  explicit EditedPlan(const Plan& plan) : plan(plan) {
    for (int rank = 0; rank < plan.problem.ranks(); ++rank) steps.push_back(rank_steps(plan, rank));
  }
  /// A plan of `count` empty steps, to be filled by hand.
  EditedPlan(Pass pass, const Problem& problem, int count) {
    plan.schedule = "by hand";
    plan.pass = pass;
    plan.problem = problem;
    plan.steps = count;
    steps.assign(static_cast<std::size_t>(problem.ranks()),
                 std::vector<Step>(static_cast<std::size_t>(count)));
  }

  Step& at(int rank, int step) {
    return steps[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  }

  /// Adds a step at the end of every rank.
  void add_step() {
    for (auto& rank : steps) rank.emplace_back();
    ++plan.steps;
  }

  /// Posts both sides of a message in the same step of both ranks.
  void message(int from, int to, const TensorSlice& slice, int post, Slot source, Slot landing,
               OnReceive on_receive = OnReceive::store, Slot target = local_slot,
               Channel channel = Channel::activations) {
    Transfer transfer;
    transfer.slice = slice;
    transfer.wire = plan.problem.wire(slice.tensor);
    transfer.channel = channel;
    transfer.post = post;
    transfer.wait = post + 1;
    transfer.peer = to;
    transfer.slot = source;
    at(from, post).sends.push_back(transfer);
    transfer.peer = from;
    transfer.slot = landing;
    transfer.target = target;
    transfer.on_receive = on_receive;
    at(to, post).receives.push_back(transfer);
  }

  Plan finish() const {
    Plan finished = plan;
    finished.step = [steps = steps](int rank, int step) {
      return steps.at(static_cast<std::size_t>(rank)).at(static_cast<std::size_t>(step));
    };
    return finished;
  }

  Plan plan;
  std::vector<std::vector<Step>> steps;  // [rank][step]
};

/// A block list on disk for the life of the object.
class BlockFile {
 public:
  /// Row r of `rows` holds the block columns of block row r, as text.
  explicit BlockFile(const std::vector<std::string>& rows) {
    std::string text = fmt::format("annulus-block-mask 1\nblocks {}\n", rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) text += fmt::format("{}: {}\n", r, rows[r]);
    file_ = folder_.write("list.blocks", text + "end\n");
  }

  std::string mask(std::int64_t block) const { return fmt::format("blocks:{},{}", block, file_); }

 private:
  annulus::test::TemporaryFolder folder_;
  std::string file_;
};

/// What the validator finds.
inline std::vector<std::string> found(const EditedPlan& plan) {
  return violations(plan.finish());
}

}  // namespace annulus::plan::test
