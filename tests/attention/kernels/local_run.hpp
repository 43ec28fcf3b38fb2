#pragma once

#include <algorithm>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/dtype.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "attention/kernels/mask_on.hpp"
#include "attention/kernels/runs_on.hpp"
#include "attention/sequence/positions.hpp"
#include "support/attention/attention_arrays.hpp"
#include "support/attention/attention_problem.hpp"
#include "support/attention/head_lists_on.hpp"

namespace annulus::test {

/// The kernels that an execution space has.
template <class Exec>
std::vector<attention::Kernel> kernels_of() {
  if constexpr (std::is_same_v<Exec, HostExec>)
    return {attention::Kernel::portable, attention::Kernel::host_simd};
  else
    return {attention::Kernel::portable};
}

/// How a whole problem is cut into local attentions.
struct LocalRun {
  attention::KernelOptions kernel = attention::Kernel::portable;
  Layout layout{};  ///< `balanced` is cut for short documents (cut_layout), whatever the mask is
  int shards = 1;
  unsigned order = 0;  ///< key shards come in their own order (0) or shuffled by this seed
  Storage storage = Storage::dense;
  bool fresh = false;  ///< the first to write results does so without anybody having cleared them
  /// The last call of a query shard writes ForwardArrays::finished, which is the result's `out` then. Forward
  /// alone.
  bool finishes = false;
  /// A rule in the place of the problem's mask; its arrays can be read on the execution space.
  const MaskRule* rule = nullptr;
  /// Each kv head lists the positions of its keys (Operands::kv_listed), in the place of their position map.
  bool lists_keys = false;
};

/// The positions of a shard for each of `heads` kv heads.
template <class Exec>
Array2<std::int64_t, Exec> listed_positions(const PositionMap& shard, std::int64_t heads) {
  const Array2<std::int64_t, Exec> listed("listed", heads, shard.count);
  const auto host = Kokkos::create_mirror_view(listed);
  for (std::int64_t head = 0; head < heads; ++head)
    for (std::int64_t row = 0; row < shard.count; ++row) host(head, row) = shard(row);
  Kokkos::deep_copy(listed, host);
  return listed;
}

/// Solves `problem` by local attention alone: each query shard starts anew, merges all key shards one after
/// the other, then sends its gradients to all key shards. What every schedule must come to.
template <class T, class Exec>
AttentionResult run_local(const Exec& exec, const AttentionProblem& problem, const LocalRun& run) {
  const attention::MaskOn<Exec> mask(exec, problem.mask);
  std::optional<HeadLists<Exec>> lists;
  if (problem.head_list_block > 0)
    lists.emplace(exec, mask.rule(), problem.head_list_block, problem.head_lists(), problem.heads_of_list);
  const MaskRule rule = run.rule != nullptr ? *run.rule : lists ? lists->rule() : mask.rule();
  const float start = run.fresh ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  AttentionResult result = problem.empty_result();
  const Layout layout = cut_layout(run.layout, problem.shape.tokens, run.shards);
  const attention::RunsOn<Exec> runs(exec, {layout});
  std::vector<PositionMap> positions;
  std::vector<Array2<std::int64_t, Exec>> listed;
  std::vector<StridedArray<T, Exec>> k, v;
  std::vector<StridedArray<float, Exec>> dk, dv;
  for (int s = 0; s < run.shards; ++s) {
    positions.push_back(runs(layout.shard(problem.shape.tokens, run.shards, s)));
    listed.push_back(listed_positions<Exec>(positions[s], problem.k.batch * problem.k.heads));
    k.push_back(rows_on<T>(exec, problem.k, positions[s], run.storage));
    v.push_back(rows_on<T>(exec, problem.v, positions[s], run.storage));
    dk.push_back(filled_rows(exec, problem.k, positions[s], start, run.storage));
    dv.push_back(filled_rows(exec, problem.v, positions[s], start, run.storage));
  }
  const HeadNumbers<T, Exec> sinks(exec, problem.sinks);
  const HeadNumbers<float, Exec> d_sinks(exec, problem.sinks);
  Kokkos::deep_copy(exec, d_sinks.view(), 0.0f);
  std::vector<int> key_order(run.shards);
  std::iota(key_order.begin(), key_order.end(), 0);
  if (run.order != 0) std::shuffle(key_order.begin(), key_order.end(), std::mt19937(run.order));

  for (int s = 0; s < run.shards; ++s) {
    const auto q = rows_on<T>(exec, problem.q, positions[s], run.storage);
    const auto d_out = rows_on<T>(exec, problem.d_out, positions[s], run.storage);
    const auto operands = [&](int key) {
      return attention::Operands<T, Exec>{q.read(),
                                          k[key].read(),
                                          v[key].read(),
                                          positions[s],
                                          positions[key],
                                          rule,
                                          static_cast<float>(problem.scale),
                                          static_cast<float>(problem.soft_cap),
                                          run.lists_keys ? listed[key].data() : nullptr};
    };
    const auto numbers = [&]<class E>(E, std::int64_t width) {
      return StridedArray<E, Exec>(exec, run.storage, problem.q.batch, problem.q.heads, positions[s].count,
                                   width);
    };
    const auto out = numbers(float(), problem.v.width), lse = numbers(float(), 1), d = numbers(float(), 1);
    const auto finished = numbers(T(), problem.v.width);
    const auto dq = filled_rows(exec, problem.q, positions[s], start, run.storage);

    if (!run.fresh) attention::start_forward(exec, out.view(), lse.rows());
    attention::KernelOptions options = run.kernel;
    for (const int key : key_order) {
      options.fresh_out = run.fresh && key == key_order.front();
      attention::ForwardArrays<T, Exec> arrays{.out = out.view(), .lse = lse.rows()};
      if (key == key_order.back()) arrays.sinks = sinks.view();
      if (run.finishes && key == key_order.back()) arrays.finished = finished.view();
      attention::forward<Exec, T>(exec, operands(key), arrays, options);
    }
    if (run.finishes) {
      exec.fence("annulus::test: a query shard is finished");
      finished.store(result.out, positions[s]);
      lse.store(result.lse, positions[s]);
      EXPECT_EQ(finished.touched_margins(), 0);
      continue;
    }
    attention::row_dot<Exec, T>(exec, out.read(), d_out.read(), d.rows());
    if (problem.sinks.heads > 0)
      attention::sink_gradients<Exec, T>(exec,
                                         {sinks.view(), lse.read_rows(), d.read_rows(), d_sinks.view()});
    for (const int key : key_order) {
      options.fresh_dq = run.fresh && key == key_order.front();
      options.fresh_dkv = run.fresh && s == 0;
      attention::backward<Exec, T>(exec, operands(key),
                                   {.d_out = d_out.read(),
                                    .lse = lse.read_rows(),
                                    .d = d.read_rows(),
                                    .dq = dq.view(),
                                    .dk = dk[key].view(),
                                    .dv = dv[key].view()},
                                   options);
    }
    exec.fence("annulus::test: a query shard is done");
    out.store(result.out, positions[s]);
    lse.store(result.lse, positions[s]);
    dq.store(result.dq, positions[s]);
    for (const auto* array : {&out, &lse, &dq}) EXPECT_EQ(array->touched_margins(), 0);
  }
  for (int s = 0; s < run.shards; ++s) {
    dk[s].store(result.dk, positions[s]);
    dv[s].store(result.dv, positions[s]);
    for (const auto* array : {&dk[s], &dv[s]}) EXPECT_EQ(array->touched_margins(), 0);
  }
  d_sinks.store(result.d_sinks);
  return result;
}

/// run_local with storage type `type`.
template <class Exec>
AttentionResult run_local(const Exec& exec, const AttentionProblem& problem, DType type,
                          const LocalRun& run) {
  return with_storage_type(type, [&]<class T>(T) { return run_local<T>(exec, problem, run); });
}

}  // namespace annulus::test
