#pragma once

#include <string>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "support/attention/attention_arrays.hpp"
#include "support/exec.hpp"

namespace annulus::test {

/// The arrays of an attention problem as plans know them.
inline plan::Problem planning_problem(const AttentionProblem& of, const Topology& topology,
                                      const Layout& layout, DType dtype = DType::f32) {
  return {.topology = topology,
          .layout = layout.for_mask(of.mask, topology.ranks()),
          .mask = of.mask,
          .heads = static_cast<int>(of.shape.heads),
          .kv_heads = static_cast<int>(of.shape.kv_heads),
          .head_dim = of.shape.head_dim,
          .v_head_dim = of.shape.v_head_dim,
          .batch = static_cast<int>(of.shape.batch),
          .dtype = dtype};
}

/// A schedule's plans of both passes.
inline executor::Plans plans_of(const std::string& schedule, const plan::Problem& problem) {
  return {plan::make_plan(schedule, problem, plan::Pass::forward),
          plan::make_plan(schedule, problem, plan::Pass::backward)};
}

/// A rank's arrays of both passes of distributed attention: its rows of a problem.
template <class T, class Exec = TestExec>
class RankRows : public AttentionArrays<T, Exec> {
  using Arrays = AttentionArrays<T, Exec>;

 public:
  using Attention = executor::Attention<Exec, T>;

  RankRows(const Exec& exec, const AttentionProblem& problem, const PositionMap& positions)
      : Arrays(exec, problem, positions, positions) {}

  typename Attention::Forward forward() const {
    return {.q = Arrays::q.memory(),
            .k = Arrays::k.memory(),
            .v = Arrays::v.memory(),
            .scale = static_cast<float>(Arrays::problem.scale),
            .soft_cap = static_cast<float>(Arrays::problem.soft_cap),
            .out = Arrays::out.memory(),
            .lse = statistic(Arrays::lse),
            .sinks = Arrays::sinks.view()};
  }
  typename Attention::Backward backward() const {
    return {.q = Arrays::q.memory(),
            .k = Arrays::k.memory(),
            .v = Arrays::v.memory(),
            .scale = static_cast<float>(Arrays::problem.scale),
            .soft_cap = static_cast<float>(Arrays::problem.soft_cap),
            .lse = statistic(Arrays::lse),
            .d = statistic(Arrays::d),
            .d_out = Arrays::d_out.memory(),
            .dq = Arrays::dq.memory(),
            .dk = Arrays::dk.memory(),
            .dv = Arrays::dv.memory(),
            .sinks = Arrays::sinks.view(),
            .d_sinks = Arrays::d_sinks.view()};
  }

  /// Enqueues both passes: those of distributed or of sparse attention, whose selection follows the arrays.
  template <class Passes, class... Selection>
  void run(const Exec& exec, Passes& attention, const Selection&... selection) const {
    attention.forward(exec, forward(), selection...);
    attention::row_dot<Exec, T>(exec, Arrays::out.read(), Arrays::d_out.read(), Arrays::d.rows());
    attention.backward(exec, backward(), selection...);
  }

  /// What pass(arrays of forward) leaves in Forward::finished, which has the rows among the heads, as models
  /// store them, and holds `before` until then.
  template <class Pass>
  Array finished(const Exec& exec, const Pass& pass, float before = Arrays::not_written) const {
    const Array& q = Arrays::problem.q;
    const std::int64_t columns = Arrays::problem.v.width;
    Array found(q.batch, q.heads, q.tokens, columns);
    const StridedArray<T, Exec> array(exec, Storage::tokens_first, q.batch, q.heads, positions().count,
                                      columns);
    Kokkos::deep_copy(exec, array.view(), T(before));
    auto arrays = forward();
    arrays.finished = array.view();
    pass(arrays);
    exec.fence("annulus::test: finished");
    array.store(found, positions());
    return found;
  }

  const PositionMap& positions() const { return Arrays::queries; }

 private:
  static Array3<float, Exec> statistic(const StridedArray<float, Exec>& of) {
    const auto& memory = of.memory();
    return Array3<float, Exec>(memory.data(), memory.extent(0), memory.extent(1), memory.extent(2));
  }
};

}  // namespace annulus::test
