#pragma once

#include <cmath>
#include <string>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/plan/plan.hpp>

#include "attention/kernels/mask_on.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "bench/attention/check/check.hpp"
#include "bench/attention/local/inputs.hpp"

namespace annulus::bench {

/// Calls `visit` with a value of the storage type.
template <class Visit>
auto with_type(DType type, const Visit& visit) {
  if (type == DType::bf16) return visit(bfloat16());
  return type == DType::f16 ? visit(float16()) : visit(float());
}

inline float scale_of(const plan::Problem& problem) {
  return static_cast<float>(1.0 / std::sqrt(problem.head_dim));
}

/// Results of both passes for some rows; what they hold is not set. Without backward pass dq, dk, dv and d
/// are empty.
template <class Exec>
struct LocalResults {
  using Result = Owned<Array4<float, Exec>>;
  using Rows = Owned<Array3<float, Exec>>;

  LocalResults(const Exec& exec, const plan::Problem& p, std::int64_t rows, bool backward = true,
               bool sinks = false)
      : out(result(exec, p, plan::Tensor::o, rows)), lse(statistic(exec, p, "lse", rows)) {
    if (!backward) return;
    dq = result(exec, p, plan::Tensor::dq, rows);
    dk = result(exec, p, plan::Tensor::dk, rows);
    dv = result(exec, p, plan::Tensor::dv, rows);
    d = statistic(exec, p, "d", rows);
    if (sinks)
      d_sinks = Owned<Array1<float, Exec>>::uninitialized(exec, MemoryCategory::gradients,
                                                          "annulus::bench::d_sinks", p.heads);
  }

  Result out, dq;                      // (batch, heads, rows, v_head_dim), and head_dim
  Result dk, dv;                       // (batch, kv_heads, rows, head_dim), and v_head_dim
  Rows lse, d;                         // (batch, heads, rows)
  Owned<Array1<float, Exec>> d_sinks;  // (heads), with sinks

 private:
  static Result result(const Exec& exec, const plan::Problem& p, plan::Tensor tensor, std::int64_t rows) {
    const bool gradient = plan::is_gradient(tensor);
    return Result::uninitialized(exec, gradient ? MemoryCategory::gradients : MemoryCategory::activations,
                                 "annulus::bench::" + std::string(plan::name_of(tensor)), p.batch,
                                 plan::is_query_side(tensor) ? p.heads : p.kv_heads, rows, p.columns(tensor));
  }
  static Rows statistic(const Exec& exec, const plan::Problem& p, const std::string& name,
                        std::int64_t rows) {
    return Rows::uninitialized(exec, MemoryCategory::activations, "annulus::bench::" + name, p.batch, p.heads,
                               rows);
  }
};

/// q, k, v and, with a backward pass, d_o: of T, the storage type. And what becomes of scores.
template <class Exec, class T>
struct LocalInputs {
  Owned<Array4<T, Exec>> q, k, v, d_out;
  float soft_cap = 0.0f;         ///< 0: none
  Owned<Array1<T, Exec>> sinks;  ///< (heads) or none

  attention::Operands<T, Exec> operands(const PositionMap& q_rows, const PositionMap& kv_rows,
                                        const MaskRule& mask, float scale) const {
    return {*q, *k, *v, q_rows, kv_rows, mask, scale, soft_cap};
  }
  /// What a backward pass reads and writes.
  attention::BackwardArrays<T, Exec> arrays(const LocalResults<Exec>& to) const {
    return {.d_out = *d_out, .lse = *to.lse, .d = *to.d, .dq = *to.dq, .dk = *to.dk, .dv = *to.dv};
  }
  /// Copies on the host; the tensors themselves where that is where they lie.
  HostTensors<T> on_host(const PositionMap& positions, const LocalResults<Exec>& results) const {
    const auto host = [](const auto& owned) {
      return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), owned.view());
    };
    HostTensors<T> all{positions,        host(q),           host(k),          host(v),
                       host(d_out),      host(results.out), host(results.dq), host(results.dk),
                       host(results.dv), host(results.lse)};
    all.soft_cap = soft_cap;
    if (sinks.allocated()) all.sinks = host(sinks);
    if (results.d_sinks.allocated()) all.d_sinks = host(results.d_sinks);
    return all;
  }
};

/// A whole forward of the local kernel: it starts from nothing.
template <class Exec, class T>
void run_local_forward(const Exec& exec, const attention::Operands<T, Exec>& in,
                       const LocalInputs<Exec, T>& inputs, const LocalResults<Exec>& to,
                       attention::Kernel kernel) {
  attention::start_forward<Exec>(exec, *to.out, *to.lse);
  attention::forward<Exec, T>(exec, in, {.out = *to.out, .lse = *to.lse, .sinks = *inputs.sinks}, kernel);
  exec.fence("annulus::bench: a forward is done");
}

/// A whole backward of the local kernel: forms D, clears the gradients and adds to them.
template <class Exec, class T>
void run_local_backward(const Exec& exec, const attention::Operands<T, Exec>& in,
                        const LocalInputs<Exec, T>& inputs, const LocalResults<Exec>& to,
                        attention::Kernel kernel) {
  attention::row_dot<Exec, T>(exec, *to.out, *inputs.d_out, *to.d);
  Kokkos::deep_copy(exec, *to.dq, 0.0f);  // one by one: nvcc cannot read a loop over members in braces
  Kokkos::deep_copy(exec, *to.dk, 0.0f);
  Kokkos::deep_copy(exec, *to.dv, 0.0f);
  attention::backward<Exec, T>(exec, in, inputs.arrays(to), kernel);
  if (to.d_sinks.allocated()) {
    Kokkos::deep_copy(exec, *to.d_sinks, 0.0f);
    attention::sink_gradients<Exec, T>(exec, {*inputs.sinks, *to.lse, *to.d, *to.d_sinks});
  }
  exec.fence("annulus::bench: a backward is done");
}

/// Attention of a whole sequence on the default execution space, without ranks: its tensors and both passes.
/// T is the storage type of q, k, v, d_o.
template <class T>
class LocalPasses {
 public:
  using Exec = Kokkos::DefaultExecutionSpace;
  using Results = LocalResults<Exec>;

  /// Inputs are random; those of a shorter sequence of the same seed are the first rows of those of a longer
  /// one.
  LocalPasses(const plan::Problem& problem, std::uint64_t seed, attention::Kernel kernel, float soft_cap)
      : problem_(problem),
        kernel_(kernel),
        positions_(Layout().shard(problem.mask.tokens(), 1, 0)),
        mask_(exec_, problem.mask),
        inputs_{input(plan::Tensor::q, seed),
                input(plan::Tensor::k, seed),
                input(plan::Tensor::v, seed),
                input(plan::Tensor::d_o, seed),
                soft_cap,
                {}},
        results_(exec_, problem, positions_.count) {}

  /// A pass as a layer asks for it, into results(); waits for its end.
  void forward() { run_local_forward<Exec, T>(exec_, operands(all_keys()), inputs_, results_, kernel_); }
  void backward() { run_local_backward<Exec, T>(exec_, operands(all_keys()), inputs_, results_, kernel_); }

  /// One call of the kernel on some of the keys, enqueued. The backward starts from the LSE of results() and
  /// the D that row_dot() has formed. With `finished` the forward is the last one of its rows
  /// (attention::ForwardArrays).
  void forward(RowRange keys, const Results& to, attention::KernelOptions options,
               const Strided4<T, Exec>& finished = {}) const {
    options.kernel = kernel_;
    attention::forward<Exec, T>(exec_, operands(keys), {.out = *to.out, .lse = *to.lse, .finished = finished},
                                options);
  }
  /// What a forward can finish into, (batch, heads, rows, v_head_dim); its values are not set.
  Owned<Array4<T, Exec>> finished() const {
    return Owned<Array4<T, Exec>>::uninitialized(exec_, MemoryCategory::activations,
                                                 "annulus::bench::finished", problem_.batch, problem_.heads,
                                                 positions_.count, problem_.columns(plan::Tensor::o));
  }
  void backward(RowRange keys, const Results& to, attention::KernelOptions options) const {
    options.kernel = kernel_;
    attention::BackwardArrays<T, Exec> arrays = inputs_.arrays(to);
    arrays.lse = *results_.lse;
    arrays.d = *results_.d;
    arrays.dk = rows_of(*to.dk, keys);
    arrays.dv = rows_of(*to.dv, keys);
    attention::backward<Exec, T>(exec_, operands(keys), arrays, options);
  }
  /// D from results().out, enqueued.
  void row_dot() const { attention::row_dot<Exec, T>(exec_, *results_.out, *inputs_.d_out, *results_.d); }

  /// Which kernel runs.
  attention::Kernel kernel() const {
    return attention::kernel_for<Exec, T>(problem_.head_dim, kernel_, mask_.rule(), inputs_.soft_cap,
                                          problem_.v_head_dim);
  }

  const Exec& exec() const { return exec_; }
  const plan::Problem& problem() const { return problem_; }
  float soft_cap() const { return inputs_.soft_cap; }
  const PositionMap& positions() const { return positions_; }
  RowRange all_keys() const { return {0, positions_.count}; }
  const Results& results() const { return results_; }
  HostTensors<T> tensors() const { return inputs_.on_host(positions_, results_); }

 private:
  template <class View>
  static auto rows_of(const View& tensor, RowRange rows) {
    return Kokkos::subview(tensor, Kokkos::ALL, Kokkos::ALL, Kokkos::pair(rows.begin, rows.end), Kokkos::ALL);
  }
  attention::Operands<T, Exec> operands(RowRange keys) const {
    return {*inputs_.q,         rows_of(*inputs_.k, keys), rows_of(*inputs_.v, keys),
            positions_,         positions_.slice(keys),    mask_.rule(),
            scale_of(problem_), inputs_.soft_cap};
  }
  Owned<Array4<T, Exec>> input(plan::Tensor tensor, std::uint64_t seed) const {
    return make_input<Exec, T>(exec_, problem_, tensor, {.seed = seed, .positions = positions_});
  }

  Exec exec_;
  plan::Problem problem_;
  attention::Kernel kernel_;
  PositionMap positions_;
  attention::MaskOn<Exec> mask_;
  LocalInputs<Exec, T> inputs_;
  Results results_;
};

}  // namespace annulus::bench
