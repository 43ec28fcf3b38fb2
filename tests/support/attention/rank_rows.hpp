#pragma once

#include <limits>
#include <string>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "support/attention/attention_rows.hpp"
#include "support/exec.hpp"

namespace annulus::test {

/// A schedule's plans of both passes.
inline executor::Plans plans_of(const std::string& schedule, const plan::Problem& problem) {
  return {plan::make_plan(schedule, problem, plan::Pass::forward),
          plan::make_plan(schedule, problem, plan::Pass::backward)};
}

/// A rank's arrays of both passes of distributed attention: its rows of a problem.
template <class T, class Exec = TestExec>
class RankRows {
 public:
  using Attention = executor::Attention<Exec, T>;

  RankRows(const Exec& exec, const AttentionProblem& problem, const PositionMap& positions)
      : problem_(problem),
        positions_(positions),
        q_(rows_on<T>(exec, problem.q, positions)),
        k_(rows_on<T>(exec, problem.k, positions)),
        v_(rows_on<T>(exec, problem.v, positions)),
        d_out_(rows_on<T>(exec, problem.d_out, positions)),
        out_(like(exec, problem.q, problem.q.width)),
        lse_(like(exec, problem.q, 1)),
        d_(like(exec, problem.q, 1)),
        dq_(like(exec, problem.q, problem.q.width)),
        dk_(like(exec, problem.k, problem.k.width)),
        dv_(like(exec, problem.v, problem.v.width)) {}

  typename Attention::Forward forward() const {
    return {.q = q_.memory(),
            .k = k_.memory(),
            .v = v_.memory(),
            .scale = static_cast<float>(problem_.scale),
            .out = out_.memory(),
            .lse = statistic(lse_)};
  }
  typename Attention::Backward backward() const {
    return {.q = q_.memory(),
            .k = k_.memory(),
            .v = v_.memory(),
            .scale = static_cast<float>(problem_.scale),
            .lse = statistic(lse_),
            .d = statistic(d_),
            .d_out = d_out_.memory(),
            .dq = dq_.memory(),
            .dk = dk_.memory(),
            .dv = dv_.memory()};
  }

  /// Enqueues both passes: those of distributed or of sparse attention, whose selection follows the arrays.
  template <class Passes, class... Selection>
  void run(const Exec& exec, Passes& attention, const Selection&... selection) const {
    attention.forward(exec, forward(), selection...);
    attention::row_dot<Exec, T>(exec, out_.read(), d_out_.read(), d_.rows());
    attention.backward(exec, backward(), selection...);
  }

  /// Sets all results: passes write them and do not add to them.
  void fill(const Exec& exec, float value = std::numeric_limits<float>::quiet_NaN()) const {
    for (const auto* array : {&out_, &lse_, &dq_, &dk_, &dv_}) Kokkos::deep_copy(exec, array->view(), value);
  }

  /// Waits for the results; those of rows of other ranks are 0.
  AttentionResult results(const Exec& exec) const {
    exec.fence("annulus::test: results are there");
    AttentionResult result = problem_.empty_result(0);
    out_.store(result.out, positions_);
    lse_.store(result.lse, positions_);
    dq_.store(result.dq, positions_);
    dk_.store(result.dk, positions_);
    dv_.store(result.dv, positions_);
    return result;
  }

  /// What pass(arrays of forward) leaves in Forward::finished, which has the rows among the heads, as models
  /// store them, and holds `before` until then.
  template <class Pass>
  Array finished(const Exec& exec, const Pass& pass,
                 float before = std::numeric_limits<float>::quiet_NaN()) const {
    Array found(problem_.q.batch, problem_.q.heads, problem_.q.tokens, problem_.q.width);
    const StridedArray<T, Exec> array(exec, Storage::tokens_first, found.batch, found.heads, positions_.count,
                                      found.width);
    Kokkos::deep_copy(exec, array.view(), T(before));
    auto arrays = forward();
    arrays.finished = array.view();
    pass(arrays);
    exec.fence("annulus::test: finished");
    array.store(found, positions_);
    return found;
  }

  const PositionMap& positions() const { return positions_; }

 private:
  using Numbers = StridedArray<float, Exec>;

  Numbers like(const Exec& exec, const Array& whole, std::int64_t width) const {
    return Numbers(exec, Storage::dense, whole.batch, whole.heads, positions_.count, width);
  }
  static Array3<float, Exec> statistic(const Numbers& of) {
    const auto& memory = of.memory();
    return Array3<float, Exec>(memory.data(), memory.extent(0), memory.extent(1), memory.extent(2));
  }

  const AttentionProblem& problem_;
  PositionMap positions_;
  StridedArray<T, Exec> q_, k_, v_, d_out_;
  Numbers out_, lse_, d_, dq_, dk_, dv_;
};

}  // namespace annulus::test
