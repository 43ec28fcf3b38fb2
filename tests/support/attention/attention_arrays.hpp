#pragma once

#include <limits>

#include <annulus/attention/kernels/local.hpp>

#include "support/attention/attention_rows.hpp"

namespace annulus::test {

/// Arrays of both passes of attention on an execution space: some queries and keys of a problem, and results.
template <class T, class Exec>
struct AttentionArrays {
  static constexpr float not_written = std::numeric_limits<float>::quiet_NaN();

  AttentionArrays(const Exec& exec, const AttentionProblem& problem, const PositionMap& queries,
                  const PositionMap& keys, float value = not_written)
      : problem(problem),
        queries(queries),
        keys(keys),
        q(rows_on<T>(exec, problem.q, queries)),
        k(rows_on<T>(exec, problem.k, keys)),
        v(rows_on<T>(exec, problem.v, keys)),
        d_out(rows_on<T>(exec, problem.d_out, queries)),
        out(like(exec, problem.q, queries, problem.v.width)),
        lse(like(exec, problem.q, queries, 1)),
        d(like(exec, problem.q, queries, 1)),
        dq(like(exec, problem.q, queries, problem.q.width)),
        dk(like(exec, problem.k, keys, problem.k.width)),
        dv(like(exec, problem.v, keys, problem.v.width)),
        sinks(exec, problem.sinks),
        d_sinks(exec, problem.sinks) {
    fill(exec, value);
  }

  attention::Operands<T, Exec> operands(const MaskRule& mask) const {
    return {q.read(),
            k.read(),
            v.read(),
            queries,
            keys,
            mask,
            static_cast<float>(problem.scale),
            static_cast<float>(problem.soft_cap)};
  }
  attention::BackwardArrays<T, Exec> gradients() const {
    return {.d_out = d_out.read(),
            .lse = lse.read_rows(),
            .d = d.read_rows(),
            .dq = dq.view(),
            .dk = dk.view(),
            .dv = dv.view()};
  }

  /// Sets all results; those that are added to become 0.
  void fill(const Exec& exec, float value = not_written) const {
    Kokkos::deep_copy(exec, d_sinks.view(), 0.0f);
    for (const auto* array : {&out, &lse, &dq, &dk, &dv}) Kokkos::deep_copy(exec, array->view(), value);
  }

  /// Waits for the results; those of other rows are 0.
  AttentionResult results(const Exec& exec) const {
    exec.fence("annulus::test: results are there");
    AttentionResult result = problem.empty_result(0);
    out.store(result.out, queries);
    lse.store(result.lse, queries);
    dq.store(result.dq, queries);
    dk.store(result.dk, keys);
    dv.store(result.dv, keys);
    d_sinks.store(result.d_sinks);
    return result;
  }

  const AttentionProblem& problem;
  PositionMap queries, keys;
  StridedArray<T, Exec> q, k, v, d_out;
  StridedArray<float, Exec> out, lse, d, dq, dk, dv;
  HeadNumbers<T, Exec> sinks;
  HeadNumbers<float, Exec> d_sinks;

 private:
  static StridedArray<float, Exec> like(const Exec& exec, const Array& whole, const PositionMap& rows,
                                        std::int64_t width) {
    return {exec, Storage::dense, whole.batch, whole.heads, rows.count, width};
  }
};

}  // namespace annulus::test
