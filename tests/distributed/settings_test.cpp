// Settings change how passes are run, not what comes out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/comm/loopback.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

#include "distributed/attention_case.hpp"
#include "support/pass_through.hpp"

namespace annulus::test {
namespace {

using distributed::Settings;
using distributed::Work;
using plan::Pass;

struct BothPlans {
  plan::Plan forward, backward;
};

/// The plans, or nothing where the schedule refuses the problem.
std::optional<BothPlans> try_plans(const std::string& schedule, const plan::Problem& problem) {
  try {
    return BothPlans{plan::make_plan(schedule, problem, Pass::forward),
                     plan::make_plan(schedule, problem, Pass::backward)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Every schedule by a name that fits the ranks, hybrids in all their shapes.
std::vector<std::string> schedules_for(int ranks) {
  std::vector<std::string> names;
  for (const std::string& name : plan::schedule_names()) {
    if (name != "hybrid:HxC") {
      names.push_back(name);
      continue;
    }
    for (int heads = 2; heads < ranks; ++heads) {
      if (ranks % heads == 0) names.push_back(fmt::format("hybrid:{}x{}", heads, ranks / heads));
    }
  }
  return names;
}

/// out, lse, dq, dk, dv of this rank, one after another.
std::vector<float> results(comm::Communicator& communicator, const BothPlans& plans,
                           const Settings& settings) {
  const plan::Problem& problem = plans.forward.problem;
  const PositionMap rows = problem.shard(communicator.rank());
  const auto filled = [&](const char* label, int heads) {
    Array4<float, HostExec> array(label, problem.batch, heads, rows.count, problem.head_dim);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < rows.count; ++r) {
        for (std::int64_t i = 0; i < problem.head_dim; ++i) {
          const std::int64_t number = (rows(r) * 31 + h * 7 + i * 3 + label[0]) % 41;
          for (std::int64_t b = 0; b < problem.batch; ++b) {
            array(b, h, r, i) = static_cast<float>(number + b) / 20.0f - 1.0f;
          }
        }
      }
    }
    return array;
  };
  const auto q = filled("q", problem.heads), k = filled("k", problem.kv_heads),
             v = filled("v", problem.kv_heads), d_out = filled("d_out", problem.heads);
  const auto out = filled("out", problem.heads), dq = filled("dq", problem.heads),
             dk = filled("dk", problem.kv_heads), dv = filled("dv", problem.kv_heads);
  const Array3<float, HostExec> lse("lse", problem.batch, problem.heads, rows.count),
      d("d", problem.batch, problem.heads, rows.count);
  const HostExec exec;
  distributed::Attention<HostExec, float> attention(exec, communicator, plans.forward, plans.backward,
                                                    settings);
  attention.forward(exec, {.q = q, .k = k, .v = v, .scale = 0.3f, .out = out, .lse = lse});
  attention::row_dot<HostExec, float>(exec, out, d_out, d);
  attention.backward(exec, {.q = q,
                            .k = k,
                            .v = v,
                            .scale = 0.3f,
                            .lse = lse,
                            .d = d,
                            .d_out = d_out,
                            .dq = dq,
                            .dk = dk,
                            .dv = dv});
  std::vector<float> all(lse.data(), lse.data() + lse.size());
  for (const auto& array : {out, dq, dk, dv})
    all.insert(all.end(), array.data(), array.data() + array.size());
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
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
    for (const std::string& name : schedules_for(c.ranks)) {
      const auto plans = try_plans(name, problem);
      if (!plans) continue;
      SCOPED_TRACE(fmt::format("{} {} on {} ranks", name, c.layout, c.ranks));
      check(*plans);
      ++schedules;
    }
  }
  EXPECT_GT(schedules, 40);
}

TEST(DistributedSettings, WithoutOverlapTheSameBits) {
  for_schedules(4, [](const BothPlans& plans) {
    comm::run_loopback(plans.forward.problem.topology, [&](comm::Communicator& communicator) {
      Settings no_overlap;
      no_overlap.overlap = false;
      EXPECT_TRUE(same_bits(results(communicator, plans, {}), results(communicator, plans, no_overlap)));
    });
  });
}

TEST(DistributedSettings, StandInIsCalledOnceForEachCompute) {
  // One head a group: no compute is cut at the bounds of groups.
  for_schedules(8, [](const BothPlans& plans) {
    const plan::Problem& problem = plans.forward.problem;
    comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
      std::vector<Work> calls;
      Settings settings;
      settings.synthetic_kernel = [&calls](const Work& work) { calls.push_back(work); };
      results(communicator, plans, settings);
      std::size_t next = 0;
      for (const plan::Plan* plan : {&plans.forward, &plans.backward}) {
        std::int64_t pairs = 0;
        for (const plan::Step& step : plan->rank_steps(communicator.rank())) {
          for (const plan::Compute& compute : step.computes) {
            if (compute.q_rows.empty() || compute.kv_rows.empty()) continue;
            ASSERT_LT(next, calls.size());
            const Work& work = calls[next++];
            EXPECT_EQ(work.pass, plan->pass);
            EXPECT_EQ(work.query_rows, compute.q_rows.size());
            EXPECT_EQ(work.key_rows, compute.kv_rows.size());
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
    const BothPlans plans = *try_plans("ring", problem);
    comm::run_loopback(problem.topology, [&](comm::Communicator& communicator) {
      TakesThreeSms transport(communicator);
      Settings settings;
      settings.kernel.free_sms = at_least;
      settings.synthetic_kernel = [&](const Work& work) {
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
