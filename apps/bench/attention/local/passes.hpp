#pragma once

#include <cmath>
#include <string>

#include <annulus/attention/local.hpp>
#include <annulus/attention/mask_on.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/plan/plan.hpp>

#include "bench/attention/check/sampled_check.hpp"
#include "bench/attention/local/inputs.hpp"

namespace annulus::bench {

/// A whole forward of the local kernel: it starts from nothing.
template <class Exec, class T>
void run_local_forward(const Exec& exec, const attention::Operands<T, Exec>& in,
                       const Array4<float, Exec>& out, const Array3<float, Exec>& lse,
                       attention::Kernel kernel) {
  attention::start_forward<Exec>(exec, out, lse);
  attention::forward<Exec, T>(exec, in, out, lse, kernel);
  exec.fence("annulus::bench: a forward is done");
}

/// A whole backward of the local kernel: forms `d`, which `arrays` reads, clears the gradients and adds to
/// them.
template <class Exec, class T>
void run_local_backward(const Exec& exec, const attention::Operands<T, Exec>& in,
                        const Array4<float, Exec>& out, const Array3<float, Exec>& d,
                        const attention::BackwardArrays<T, Exec>& arrays, attention::Kernel kernel) {
  attention::row_dot<Exec, T>(exec, out, arrays.d_out, d);
  Kokkos::deep_copy(exec, arrays.dq, 0.0f);  // one by one: nvcc cannot read a loop over members in braces
  Kokkos::deep_copy(exec, arrays.dk, 0.0f);
  Kokkos::deep_copy(exec, arrays.dv, 0.0f);
  attention::backward<Exec, T>(exec, in, arrays, kernel);
  exec.fence("annulus::bench: a backward is done");
}

/// Results of both passes; what they hold is not set.
template <class Exec>
struct LocalResults {
  using Result = Owned<Array4<float, Exec>>;
  using Rows = Owned<Array3<float, Exec>>;

  LocalResults(const Exec& exec, const plan::Problem& p)
      : out(result(exec, p, "out", p.heads)),
        dq(result(exec, p, "dq", p.heads)),
        dk(result(exec, p, "dk", p.kv_heads)),
        dv(result(exec, p, "dv", p.kv_heads)),
        lse(Rows::uninitialized(exec, MemoryCategory::activations, "annulus::bench::lse", p.batch, p.heads,
                                p.mask.tokens())) {}

  Result out, dq;  // (batch, heads, tokens, head_dim)
  Result dk, dv;   // (batch, kv_heads, tokens, head_dim)
  Rows lse;        // (batch, heads, tokens)

 private:
  static Result result(const Exec& exec, const plan::Problem& p, const char* name, int heads) {
    return Result::uninitialized(exec, MemoryCategory::activations, std::string("annulus::bench::") + name,
                                 p.batch, heads, p.mask.tokens(), p.head_dim);
  }
};

/// Attention of a whole sequence on the default execution space, without ranks: its tensors and both passes.
/// T is the storage type of q, k, v, d_o.
template <class T>
class LocalPasses {
 public:
  using Exec = Kokkos::DefaultExecutionSpace;
  using Input = Array4<T, Exec>;
  using Rows = Array3<float, Exec>;
  using Results = LocalResults<Exec>;

  /// Inputs are random; those of a shorter sequence of the same seed are the first rows of those of a longer
  /// one.
  LocalPasses(const plan::Problem& problem, std::uint64_t seed, attention::Kernel kernel)
      : problem_(problem),
        kernel_(kernel),
        positions_(Layout().shard(problem.mask.tokens(), 1, 0)),
        mask_(exec_, problem.mask),
        q_(input(plan::Tensor::q, seed)),
        k_(input(plan::Tensor::k, seed)),
        v_(input(plan::Tensor::v, seed)),
        d_out_(input(plan::Tensor::d_o, seed)),
        results_(exec_, problem),
        d_(Owned<Rows>::uninitialized(exec_, MemoryCategory::activations, "annulus::bench::d", problem.batch,
                                      problem.heads, positions_.count)) {}

  /// A pass as a layer asks for it, into results(); waits for its end.
  void forward() {
    run_local_forward<Exec, T>(exec_, operands(all_keys()), *results_.out, *results_.lse, kernel_);
  }
  void backward() {
    run_local_backward<Exec, T>(exec_, operands(all_keys()), *results_.out, *d_, arrays(all_keys(), results_),
                                kernel_);
  }

  /// One call of the kernel on some of the keys, enqueued. The backward starts from the LSE of results() and
  /// the D that row_dot() has formed.
  void forward(RowRange keys, const Results& to, attention::KernelOptions options) const {
    options.kernel = kernel_;
    attention::forward<Exec, T>(exec_, operands(keys), *to.out, *to.lse, options);
  }
  void backward(RowRange keys, const Results& to, attention::KernelOptions options) const {
    options.kernel = kernel_;
    attention::backward<Exec, T>(exec_, operands(keys), arrays(keys, to), options);
  }
  /// D from results().out, enqueued.
  void row_dot() const { attention::row_dot<Exec, T>(exec_, *results_.out, *d_out_, *d_); }

  /// Which kernel runs.
  attention::Kernel kernel() const {
    return attention::kernel_for<Exec, T>(problem_.head_dim, kernel_, mask_.rule());
  }

  const Exec& exec() const { return exec_; }
  const plan::Problem& problem() const { return problem_; }
  const PositionMap& positions() const { return positions_; }
  RowRange all_keys() const { return {0, positions_.count}; }
  float scale() const { return static_cast<float>(1.0 / std::sqrt(problem_.head_dim)); }

  const Results& results() const { return results_; }

  /// Copies on the host; the tensors themselves where that is where they lie.
  HostTensors<T> tensors() const {
    const auto host = [](const auto& owned) {
      return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), owned.view());
    };
    return {positions_,         host(q_),          host(k_),          host(v_),          host(d_out_),
            host(results_.out), host(results_.dq), host(results_.dk), host(results_.dv), host(results_.lse)};
  }

 private:
  template <class View>
  static auto rows_of(const View& tensor, RowRange rows) {
    return Kokkos::subview(tensor, Kokkos::ALL, Kokkos::ALL, Kokkos::pair(rows.begin, rows.end), Kokkos::ALL);
  }
  attention::Operands<T, Exec> operands(RowRange keys) const {
    return {*q_,    rows_of(*k_, keys), rows_of(*v_, keys), positions_, positions_.slice(keys), mask_.rule(),
            scale()};
  }
  attention::BackwardArrays<T, Exec> arrays(RowRange keys, const Results& to) const {
    return {.d_out = *d_out_,
            .lse = *results_.lse,
            .d = *d_,
            .dq = *to.dq,
            .dk = rows_of(*to.dk, keys),
            .dv = rows_of(*to.dv, keys)};
  }
  Owned<Input> input(plan::Tensor tensor, std::uint64_t seed) const {
    return make_input<Exec, T>(exec_, problem_, tensor,
                               {.seed = seed, .positions = positions_, .tokens = {}});
  }

  Exec exec_;
  plan::Problem problem_;
  attention::Kernel kernel_;
  PositionMap positions_;
  attention::MaskOn<Exec> mask_;
  Owned<Input> q_, k_, v_, d_out_;
  Results results_;
  Owned<Rows> d_;
};

}  // namespace annulus::bench
