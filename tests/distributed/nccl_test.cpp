// Distributed attention over NCCL.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

#include "distributed/attention_case.hpp"
#include "distributed/flagship_case.hpp"
#include "distributed/nccl_fixture.hpp"
#include "support/schedule_cases.hpp"

namespace annulus::test {
namespace {

TEST_F(DistributedNccl, EveryScheduleEqualsTheReference) {
  const std::vector<std::string> layouts = {"zigzag", "striped", "contiguous", "block-striped:3"};
  const std::vector<std::string> masks = {"causal", "full", "window:20,7", "documents:0,5,31,32,45"};
  const int size = mpi_.size();
  std::size_t number = 0, served = 0;
  for (const int ranks_per_node : std::set{1, std::max(1, size / 2), size}) {
    const auto nccl = comm::make_nccl(mpi_.world(ranks_per_node));
    for (const std::string& schedule : schedules_on(size)) {
      for (const DType type : {DType::f32, DType::bf16}) {
        const std::size_t turn = schedule == "helper-worker" ? 0 : number++;
        const Layout layout = Layout::parse(schedule == "helper-worker" ? "contiguous" : layouts[turn % 4]);
        const auto sample =
            make_sample(masks[turn % 4], {.tokens = 257, .heads = 8, .kv_heads = 8, .batch = 2}, type);
        if (documented_refusal(schedule, sample->problem(nccl->topology(), layout))) continue;
        ++served;
        expect_correct(run(*nccl, *sample, schedule, layout),
                       fmt::format("{} {} {} on {}", schedule, layout.to_string(), sample->mask.to_string(),
                                   nccl->topology().to_string()));
      }
    }
  }
  EXPECT_GE(served, 2 * schedules_on(size).size());
}

TEST_F(DistributedNccl, TensorCoresUnderEverySchedule) {
  check_flagship([&](int ranks_per_node) { return comm::make_nccl(mpi_.world(ranks_per_node)); },
                 mpi_.size());
}

/// A rank's arrays of a problem, the inputs functions of (rank, index).
struct Arrays {
  using Input = Array4<bfloat16, TestExec>;
  using Result = Array4<float, TestExec>;

  Arrays(const TestExec& exec, const plan::Problem& problem, int rank)
      : q(input(exec, "q", problem, problem.heads, rank, 1)),
        k(input(exec, "k", problem, problem.kv_heads, rank, 2)),
        v(input(exec, "v", problem, problem.kv_heads, rank, 3)),
        d_out(input(exec, "d_out", problem, problem.heads, rank, 4)),
        out("out", q.layout()),
        dq("dq", q.layout()),
        dk("dk", k.layout()),
        dv("dv", k.layout()),
        lse("lse", q.extent(0), q.extent(1), q.extent(2)),
        d("d", q.extent(0), q.extent(1), q.extent(2)) {}

  static Input input(const TestExec& exec, const char* label, const plan::Problem& problem, int heads,
                     int rank, int seed) {
    const Input array(label, problem.batch, heads, problem.shard(rank).count, problem.head_dim);
    bfloat16* const values = array.data();
    Kokkos::parallel_for(
        "annulus::test::input",
        Kokkos::RangePolicy<TestExec>(exec, 0, static_cast<std::int64_t>(array.size())),
        KOKKOS_LAMBDA(std::int64_t i) {
          const auto z = static_cast<std::uint32_t>(i * 2654435761u + rank * 40503u + seed * 977u);
          values[i] = bfloat16(static_cast<float>((z ^ (z >> 15)) % 2001) * 1e-3f - 1.0f);
        });
    return array;
  }

  /// Both passes; returns all results on the host.
  std::vector<float> run(const TestExec& exec, distributed::Attention<TestExec, bfloat16>& attention) {
    attention.forward(exec, {.q = q, .k = k, .v = v, .scale = 0.1f, .out = out, .lse = lse});
    attention::row_dot<TestExec, bfloat16>(exec, out, d_out, d);
    attention.backward(exec, {.q = q,
                              .k = k,
                              .v = v,
                              .scale = 0.1f,
                              .lse = lse,
                              .d = d,
                              .d_out = d_out,
                              .dq = dq,
                              .dk = dk,
                              .dv = dv});
    exec.fence("annulus::test: both passes are done");
    std::vector<float> all;
    const auto append = [&](const auto& view) {
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
      all.insert(all.end(), host.data(), host.data() + host.size());
    };
    append(out);
    append(lse);
    append(dq);
    append(dk);
    append(dv);
    return all;
  }

  Input q, k, v, d_out;
  Result out, dq, dk, dv;
  Array3<float, TestExec> lse, d;
};

// Steps long enough that kernels and transfers of several steps are under way together: a transfer that began
// too early, or a kernel that did, would show.
TEST_F(DistributedNccl, TheSameBitsAsOverMpi) {
  const auto mpi = mpi_.world();
  const auto nccl = comm::make_nccl(mpi_.world());
  for (const std::string schedule : {"ring", "burst", "all-gather", "ulysses", "double-ring"}) {
    const plan::Problem problem{.topology = mpi->topology(),
                                .layout = Layout::parse("zigzag"),
                                .mask = Mask::parse("causal", 4096),
                                .heads = 8,
                                .kv_heads = 8,
                                .head_dim = 128,
                                .batch = 1,
                                .activation = DType::bf16};
    const plan::Plan forward = plan::make_plan(schedule, problem, plan::Pass::forward),
                     backward = plan::make_plan(schedule, problem, plan::Pass::backward);
    const TestExec exec = rank_instance();
    Arrays arrays(exec, problem, mpi->rank());
    distributed::Attention<TestExec, bfloat16> over_mpi(exec, *mpi, forward, backward),
        over_nccl(exec, *nccl, forward, backward);
    const std::vector<float> expected = arrays.run(exec, over_mpi);
    for (int again = 0; again < 5; ++again)
      EXPECT_TRUE(arrays.run(exec, over_nccl) == expected) << schedule << ", run " << again;
  }
}

}  // namespace
}  // namespace annulus::test
