#pragma once

#include <cmath>
#include <string>

#include <annulus/attention/local.hpp>
#include <annulus/attention/mask_on.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/plan/plan.hpp>

#include "bench/inputs.hpp"
#include "bench/sampled_check.hpp"

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

/// A whole backward of the local kernel: forms `d`, clears the gradients and adds to them.
template <class Exec, class T>
void run_local_backward(const Exec& exec, const attention::Operands<T, Exec>& in,
                        const Array4<const T, Exec>& d_out, const Array4<float, Exec>& out,
                        const Array3<float, Exec>& lse, const Array3<float, Exec>& d,
                        const Array4<float, Exec>& dq, const Array4<float, Exec>& dk,
                        const Array4<float, Exec>& dv, attention::Kernel kernel) {
  attention::row_dot<Exec, T>(exec, out, d_out, d);
  for (const auto& gradient : {dq, dk, dv}) Kokkos::deep_copy(exec, gradient, 0.0f);
  attention::backward<Exec, T>(exec, in, d_out, lse, d, dq, dk, dv, kernel);
  exec.fence("annulus::bench: a backward is done");
}

/// Attention of a whole sequence on the host: its tensors and both passes. T is the storage type of q, k, v,
/// d_o.
template <class T>
class LocalPasses {
 public:
  using Input = Array4<T, HostExec>;
  using Result = Array4<float, HostExec>;
  using Rows = Array3<float, HostExec>;

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
        out_(result("out", problem.heads)),
        dq_(result("dq", problem.heads)),
        dk_(result("dk", problem.kv_heads)),
        dv_(result("dv", problem.kv_heads)),
        lse_(rows("lse")),
        d_(rows("d")) {}

  void forward() { run_local_forward<HostExec, T>(exec_, operands(), *out_, *lse_, kernel_); }
  void backward() {
    run_local_backward<HostExec, T>(exec_, operands(), *d_out_, *out_, *lse_, *d_, *dq_, *dk_, *dv_, kernel_);
  }

  const plan::Problem& problem() const { return problem_; }
  const PositionMap& positions() const { return positions_; }
  float scale() const { return static_cast<float>(1.0 / std::sqrt(problem_.head_dim)); }

  const Input& q() const { return *q_; }          // (batch, heads, tokens, head_dim)
  const Input& k() const { return *k_; }          // (batch, kv_heads, tokens, head_dim)
  const Input& v() const { return *v_; }          // like k
  const Input& d_out() const { return *d_out_; }  // like q
  const Result& out() const { return *out_; }     // like q
  const Result& dq() const { return *dq_; }       // like q
  const Result& dk() const { return *dk_; }       // like k
  const Result& dv() const { return *dv_; }       // like k
  const Rows& lse() const { return *lse_; }       // (batch, heads, tokens)
  HostTensors<T> tensors() const {
    return {positions_, *q_, *k_, *v_, *d_out_, *out_, *dq_, *dk_, *dv_, *lse_};
  }

 private:
  attention::Operands<T, HostExec> operands() const {
    return {*q_, *k_, *v_, positions_, positions_, mask_.rule(), scale()};
  }
  Owned<Input> input(plan::Tensor tensor, std::uint64_t seed) const {
    return make_input<HostExec, T>(exec_, problem_, tensor,
                                   {.seed = seed, .positions = positions_, .tokens = {}});
  }
  Owned<Result> result(const char* name, int heads) const {
    return Owned<Result>::uninitialized(exec_, MemoryCategory::activations,
                                        std::string("annulus::bench::") + name, problem_.batch, heads,
                                        positions_.count, problem_.head_dim);
  }
  Owned<Rows> rows(const char* name) const {
    return Owned<Rows>::uninitialized(exec_, MemoryCategory::activations,
                                      std::string("annulus::bench::") + name, problem_.batch, problem_.heads,
                                      positions_.count);
  }

  HostExec exec_;
  plan::Problem problem_;
  attention::Kernel kernel_;
  PositionMap positions_;
  attention::MaskOn<HostExec> mask_;
  Owned<Input> q_, k_, v_, d_out_;
  Owned<Result> out_, dq_, dk_, dv_;
  Owned<Rows> lse_, d_;
};

}  // namespace annulus::bench
