// How to add a kernel (docs/contributing.md): what a local attention is given and what it must leave. This
// one is a loop over rows, keys and columns.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sequence/layout.hpp>

#include "support/attention/attention_problem.hpp"
#include "support/attention/attention_rows.hpp"

namespace annulus::test {
namespace {

/// Merges the block into (out, lse), as attention::forward does: positions are those of the rows in the whole
/// sequence, and only they say what the mask allows.
void forward_by_rows(const HostExec& exec, const attention::Operands<float, HostExec>& in,
                     const Strided4<float, HostExec>& out, const Strided3<float, HostExec>& lse) {
  const std::int64_t heads = static_cast<std::int64_t>(in.q.extent(1)),
                     group = heads / static_cast<std::int64_t>(in.k.extent(1));
  const int head_dim = static_cast<int>(in.q.extent(3));
  Kokkos::parallel_for(
      "annulus::test::forward_by_rows",
      Kokkos::MDRangePolicy<HostExec, Kokkos::Rank<3>>(
          exec, {0, 0, 0}, {static_cast<std::int64_t>(in.q.extent(0)), heads, in.q_positions.count}),
      [=](const std::int64_t b, const std::int64_t h, const std::int64_t i) {
        // Online softmax: `sum` and out are relative to `highest`, the largest score so far.
        float highest = lse(b, h, i), sum = highest == -std::numeric_limits<float>::infinity() ? 0.0f : 1.0f;
        for (std::int64_t j = 0; j < in.kv_positions.count; ++j) {
          if (!in.mask.allows(in.q_positions(i), in.kv_positions(j))) continue;
          float score = 0.0f;
          for (int c = 0; c < head_dim; ++c) score += in.q(b, h, i, c) * in.k(b, h / group, j, c);
          score *= in.scale;
          const float before = highest;
          highest = std::fmax(highest, score);
          const float shrink = std::exp(before - highest), p = std::exp(score - highest);
          sum = sum * shrink + p;
          for (int c = 0; c < head_dim; ++c)
            out(b, h, i, c) = out(b, h, i, c) * shrink + p * in.v(b, h / group, j, c);
        }
        if (sum == 0.0f) return;  // no key yet: out stays 0 and lse −∞, never NaN
        for (int c = 0; c < head_dim; ++c) out(b, h, i, c) /= sum;
        lse(b, h, i) = highest + std::log(sum);
      });
}

TEST(KernelExample, MergesBlocksInAnyOrder) {
  for (const char* mask : {"full", "causal", "window:20,5", "documents:0,40"}) {
    const AttentionProblem problem =
        AttentionProblem::random({.tokens = 90, .head_dim = 24, .batch = 2, .heads = 4, .kv_heads = 2}, mask);
    const AttentionResult expected = problem.reference();
    AttentionResult result = problem.empty_result();
    const HostExec exec;
    const Layout layout = Layout::parse("zigzag");
    for (int shard = 0; shard < 3; ++shard) {
      const PositionMap queries = layout.shard(90, 3, shard);
      const auto q = rows_on<float>(exec, problem.q, queries);
      const auto out = filled_rows(exec, problem.q, queries, 0.0f);
      const StridedArray<float, HostExec> lse(exec, Storage::dense, 2, 4, queries.count, 1);
      attention::start_forward(exec, out.view(), lse.rows());
      for (int step = 0; step < 3; ++step) {
        const PositionMap keys = layout.shard(90, 3, (shard + step) % 3);
        const auto k = rows_on<float>(exec, problem.k, keys), v = rows_on<float>(exec, problem.v, keys);
        forward_by_rows(exec,
                        {q.read(), k.read(), v.read(), queries, keys, problem.mask.rule(),
                         static_cast<float>(problem.scale)},
                        out.view(), lse.rows());
        exec.fence("annulus::test: a block of keys is merged");
      }
      out.store(result.out, queries);
      lse.store(result.lse, queries);
    }
    EXPECT_LT(relative_error(result.out, expected.out), fp32_tolerance) << mask;
    EXPECT_LT(relative_error(result.lse, expected.lse), fp32_tolerance) << mask;
  }
}

}  // namespace
}  // namespace annulus::test
