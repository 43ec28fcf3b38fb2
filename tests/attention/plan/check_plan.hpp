#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/plan/support.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/error_text.hpp"

namespace annulus::plan::test {

inline constexpr Pass passes[] = {Pass::forward, Pass::backward};
inline const std::vector<std::string> layouts = {"contiguous", "zigzag", "striped", "block-striped:3"};
inline const std::vector<std::string> all_layouts = {"contiguous", "zigzag", "striped", "block-striped:3",
                                                     "balanced"};
/// Layouts that take the mask: `balanced` takes no block list.
inline const std::vector<std::string>& layouts_of(std::string_view mask) {
  return mask.find("blocks") == mask.npos ? all_layouts : layouts;
}

/// The schedules that ring inside and between nodes.
inline const std::vector<std::string> node_rings = {"topology-burst", "hierarchical", "double-ring"};

inline std::vector<std::string> masks_of(std::int64_t tokens) {
  const std::string third = std::to_string(std::max<std::int64_t>(1, tokens / 3));
  std::vector<std::string> masks = {
      "full",       "causal",      "window:3,0",         "window:5,2",       "window:0,4",
      "window:0,0", "dilated:3,4", "dilated:2," + third, "causal+window:1,1"};
  if (tokens > 5) masks.insert(masks.end(), {"documents:0,1," + third, "documents:0,2+window:2,0"});
  return masks;
}

/// The schedule takes the problem with nothing but its name given: topology, mask, layout and heads fit.
inline bool serves(std::string_view schedule, const Problem& problem) {
  return schedule != "hybrid:HxC" &&
         !annulus::test::documented_refusal(schedule, problem);  // it needs numbers
}

/// What must hold for every plan of a schedule, beyond what the validator proves.
inline void check_plan(const Plan& plan) {
  const Problem& problem = plan.problem;
  std::int64_t pairs = 0, wanted = 0;
  bool last_step_matters = plan.steps == 0;
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    pairs += traffic(plan, rank).pairs;
    for (int peer = 0; peer < problem.ranks(); ++peer) {
      wanted += problem.heads * problem.mask.pairs(problem.shard(rank), problem.shard(peer));
    }
    for (const Step& step : rank_steps(plan, rank)) {
      for (const Compute& compute : step.computes) {
        EXPECT_FALSE(problem.mask.is_empty(problem.shard(compute.q_shard), problem.shard(compute.kv_shard)))
            << "an empty shard pair is computed";
      }
      for (const Transfer& transfer : step.sends) {
        EXPECT_GT(problem.elements(transfer.slice), 0);
        last_step_matters |= transfer.wait == plan.steps - 1;
      }
    }
    last_step_matters |= plan.steps > 0 && plan.step(rank, plan.steps - 1) != Step{};
  }
  EXPECT_EQ(pairs, wanted);
  EXPECT_TRUE(last_step_matters) << "the last step does nothing on any rank";
  EXPECT_THAT(violations(plan), testing::IsEmpty()) << to_string(plan);
}

/// The case as a test's trace names it.
inline std::string case_text(std::string_view schedule, const Problem& p) {
  return fmt::format("{} on {}, {}, {}, {} tokens, {} heads ({} kv)", schedule, p.topology.to_string(),
                     p.layout.to_string(), p.mask.to_string(), p.mask.tokens(), p.heads, p.kv_heads);
}

/// Checks the plans of both passes, which must be refused as documented, or valid. Returns whether the
/// schedule serves the problem.
inline bool check(const std::string& schedule, const Problem& problem) {
  const auto reason = annulus::test::documented_refusal(schedule, problem);
  for (const Pass pass : passes) {
    SCOPED_TRACE(case_text(schedule, problem) + " " + std::string(name_of(pass)));
    if (reason)
      EXPECT_THAT(error_text([&] { make_plan(schedule, problem, pass); }), testing::HasSubstr(*reason));
    else
      check_plan(make_plan(schedule, problem, pass));
  }
  return !reason;
}

/// Block rows with parts of all kinds.
inline const std::vector<std::string> block_rows = {"0-1 5", "", "2 4-5", "0 3", "1 7", "5", "0-7", "3 7"};

/// Rows of the shard of the rank `distance` places ahead.
inline std::int64_t rows(const Problem& problem, int rank, int distance = 0) {
  const int ranks = problem.ranks();
  return problem.shard(((rank + distance) % ranks + ranks) % ranks).count;
}

/// Elements by tensor that one rank is to send and to receive.
struct Expected {
  std::int64_t sent[tensor_count] = {}, received[tensor_count] = {};
  void set(Tensor tensor, std::int64_t out, std::int64_t in) {
    sent[static_cast<int>(tensor)] = out;
    received[static_cast<int>(tensor)] = in;
  }
};

inline void expect_traffic(const Plan& plan, int rank, const Expected& expected) {
  const Traffic found = traffic(plan, rank);
  for (int t = 0; t < tensor_count; ++t) {
    EXPECT_EQ(found.sent[t], expected.sent[t]) << name_of(static_cast<Tensor>(t)) << " sent by rank " << rank;
    EXPECT_EQ(found.received[t], expected.received[t])
        << name_of(static_cast<Tensor>(t)) << " received by rank " << rank;
  }
}

}  // namespace annulus::plan::test
