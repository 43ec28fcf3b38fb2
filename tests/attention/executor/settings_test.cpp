// Settings change how passes are run, not what comes out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>

#include "attention/plan/support.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/pass_through.hpp"

namespace annulus::test {
namespace {

using executor::LocalWork;
using executor::Plans;
using executor::Settings;

/// This rank's results.
AttentionResult results(comm::Communicator& communicator, const Plans& plans, const Settings& settings) {
  const plan::Problem& problem = plans.forward.problem;
  const auto of = AttentionProblem::random(
      {problem.mask.tokens(), problem.head_dim, problem.batch, problem.heads, problem.kv_heads}, "causal");
  const HostExec exec;
  executor::Attention<HostExec, float> attention(exec, communicator, {plans}, settings);
  const RankRows<float, HostExec> rows(exec, of, problem.shard(communicator.rank()));
  rows.run(exec, attention);
  return rows.results(exec);
}

/// Calls check(plans) for all schedules on some topologies, with odd numbers of ranks too.
template <class Check>
void for_schedules(int kv_heads, const Check& check) {
  struct Case {
    int ranks, ranks_per_node;
    const char* layout;
  };
  int schedules = 0;
  for (const Case& c : {Case{1, 1, "contiguous"}, Case{2, 1, "contiguous"}, Case{3, 3, "contiguous"},
                        Case{4, 2, "zigzag"}, Case{5, 5, "contiguous"}, Case{6, 3, "zigzag"}}) {
    const plan::Problem problem{.topology = Topology::uniform(c.ranks, c.ranks_per_node),
                                .layout = Layout::parse(c.layout),
                                .mask = Mask::parse("causal", 61),
                                .heads = 8,
                                .kv_heads = kv_heads,
                                .head_dim = 16,
                                .batch = 2};
    for (const std::string& name : schedules_on(c.ranks)) {
      if (documented_refusal(name, problem)) continue;
      SCOPED_TRACE(fmt::format("{} {} on {} ranks", name, c.layout, c.ranks));
      check(plans_of(name, problem));
      ++schedules;
    }
  }
  EXPECT_GT(schedules, 40);
}

TEST(DistributedSettings, WithoutOverlapTheSameBits) {
  for_schedules(4, [](const Plans& plans) {
    comm::run_loopback(plans.forward.problem.topology, [&](comm::Communicator& communicator) {
      Settings no_overlap;
      no_overlap.overlap = false;
      EXPECT_TRUE(same_bits(results(communicator, plans, {}), results(communicator, plans, no_overlap)));
    });
  });
}

TEST(DistributedSettings, StandInIsCalledOnceForEachCompute) {
  // One head a group: no compute is cut at the bounds of groups.
  for_schedules(8, [](const Plans& plans) {
    const plan::Problem& problem = plans.forward.problem;
    comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
      std::vector<LocalWork> calls;
      Settings settings;
      settings.synthetic_kernel = [&calls](const LocalWork& work) { calls.push_back(work); };
      results(communicator, plans, settings);
      std::size_t next = 0;
      for (const plan::Plan* plan : plans.all()) {
        std::int64_t pairs = 0;
        for (const plan::Step& step : rank_steps(*plan, communicator.rank())) {
          for (const plan::Compute& compute : step.computes) {
            if (compute.q_rows.empty() || compute.kv_rows.empty()) continue;
            ASSERT_LT(next, calls.size());
            const LocalWork& work = calls[next++];
            EXPECT_EQ(work.pass, plan->pass);
            EXPECT_EQ(work.query_rows, compute.q_rows.size());
            EXPECT_EQ(work.key_rows, compute.kv_rows.size());
            EXPECT_EQ(work.heads, compute.heads.size() * problem.batch);
            pairs += work.pairs;
          }
        }
        EXPECT_EQ(pairs, plan::traffic(*plan, communicator.rank()).pairs * problem.batch);
      }
      EXPECT_EQ(next, calls.size());
    });
  });
}

/// As a transport whose exchanges take three SMs.
class TakesThreeSms final : public PassThrough {
 public:
  using PassThrough::PassThrough;
  int sms_of_exchange() const override { return 3; }
};

TEST(DistributedSettings, KernelsLeaveSmsToExchangesUnderWay) {
  const auto free_sms = [](int at_least) {
    std::vector<int> found;  // of rank 0's kernels of both passes
    const plan::Problem problem{.topology = Topology::uniform(4, 4),
                                .layout = Layout::parse("contiguous"),
                                .mask = Mask::parse("full", 64),
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 16};
    const Plans plans = plans_of("ring", problem);
    comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
      TakesThreeSms transport(communicator);
      Settings settings;
      settings.kernel.free_sms = at_least;
      settings.synthetic_kernel = [&](const LocalWork& work) {
        if (communicator.rank() == 0) found.push_back(work.free_sms);
      };
      results(transport, plans, settings);
    });
    return found;
  };
  // A ring over four ranks computes four times forward, three times with K and V on their way.
  const std::vector<int> ring = free_sms(0);
  EXPECT_EQ(std::vector(ring.begin(), ring.begin() + 4), (std::vector{3, 3, 3, 0}));
  const std::vector<int> with_margin = free_sms(2);
  EXPECT_EQ(std::vector(with_margin.begin(), with_margin.begin() + 4), (std::vector{3, 3, 3, 2}));
}

}  // namespace
}  // namespace annulus::test
