#pragma once

#include <annulus/distributed/attention.hpp>

#include <Kokkos_Core.hpp>
#include <memory>
#include <string>
#include <utility>

#include <annulus/attention/mask_on.hpp>
#include <annulus/base/error.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/core/region.hpp>

#include "distributed/agreement.hpp"
#include "distributed/buffers.hpp"
#include "distributed/executor.hpp"
#include "distributed/program.hpp"
#include "distributed/proof.hpp"

/// The definition of Attention, instantiated by one translation unit for each element type.
namespace annulus::distributed {

template <class Exec, class T>
class Attention<Exec, T>::Impl {
 public:
  Impl(const Exec& exec, comm::Communicator& communicator, const plan::Plan& forward,
       const plan::Plan& backward, const Settings& settings)
      : communicator_(communicator), settings_(settings) {
    set_plans(exec, forward, backward);
  }

  void set_plans(const Exec& exec, const plan::Plan& forward, const plan::Plan& backward) {
    comm::require_agreement(communicator_, facts_of(forward, backward));
    Program forward_program, backward_program;
    std::string problem;
    try {
      check(forward, backward);
      const Cutting cutting{least_pairs, exec.concurrency()};
      forward_program = make_program(forward, communicator_.rank(), cutting);
      backward_program = make_program(backward, communicator_.rank(), cutting);
      if (settings_.stand_in) {
        for (Program* program : {&forward_program, &backward_program}) {
          count_pairs(*program, forward.problem.mask);
        }
      }
    } catch (const Error& error) {
      problem = error.what();  // told on all ranks: the others are about to wait for this one
    }
    comm::throw_together(communicator_, problem);
    prove_together(communicator_, {&forward_program, &backward_program});

    Capacity capacity = forward_program.capacity;
    capacity.cover(backward_program.capacity);
    exec.fence("annulus::distributed::Attention::set_plans: buffers of the plans before may go away");
    buffers_.reserve(exec, capacity, dtype_of<T>);
    forward_ = std::make_shared<const PlanText>(communicator_, std::move(forward_program));
    backward_ = std::make_shared<const PlanText>(communicator_, std::move(backward_program));
    problem_ = forward.problem;
    mask_ = attention::MaskOn<Exec>(exec, problem_.mask);
    rows_ = problem_.shard(communicator_.rank()).count;
    if (!d_.allocated() || d_.view().extent_int(0) != problem_.batch ||
        d_.view().extent_int(1) != problem_.heads ||
        static_cast<std::int64_t>(d_.view().extent(2)) != rows_) {
      d_ = {};
      d_ = Owned<Array3<float, Exec>>::uninitialized(
          exec, MemoryCategory::workspace, "annulus::distributed::d", problem_.batch, problem_.heads, rows_);
    }
  }

  void forward(const Exec& exec, const Forward& arrays) {
    const Region region("annulus::distributed::Attention::forward");
    const auto& [q, k, v, scale, out, lse] = arrays;
    check_inputs(q, k, v);
    check_shape("out", out, problem_.heads);
    check_statistic("lse", lse);
    Homes homes{};
    set(homes, plan::Tensor::q, q);
    set(homes, plan::Tensor::k, k);
    set(homes, plan::Tensor::v, v);
    set(homes, plan::Tensor::o, out);
    set(homes, plan::Tensor::lse, lse);
    run(exec, forward_, homes, scale, {plan::Tensor::o, plan::Tensor::lse});
  }

  void backward(const Exec& exec, const Backward& arrays) {
    const Region region("annulus::distributed::Attention::backward");
    const auto& [q, k, v, scale, out, lse, d_out, dq, dk, dv] = arrays;
    check_inputs(q, k, v);
    check_shape("out", out, problem_.heads);
    check_statistic("lse", lse);
    check_shape("d_out", d_out, problem_.heads);
    check_shape("dq", dq, problem_.heads);
    check_shape("dk", dk, problem_.kv_heads);
    check_shape("dv", dv, problem_.kv_heads);
    attention::row_dot<Exec, T>(exec, out, d_out, d_.view());
    Homes homes{};
    set(homes, plan::Tensor::q, q);
    set(homes, plan::Tensor::k, k);
    set(homes, plan::Tensor::v, v);
    set(homes, plan::Tensor::o, out);
    set(homes, plan::Tensor::lse, lse);
    set(homes, plan::Tensor::d, d_.view());
    set(homes, plan::Tensor::d_o, d_out);
    set(homes, plan::Tensor::dq, dq);
    set(homes, plan::Tensor::dk, dk);
    set(homes, plan::Tensor::dv, dv);
    run(exec, backward_, homes, scale, {plan::Tensor::dq, plan::Tensor::dk, plan::Tensor::dv});
  }

  void set_transfers(bool transfers) { transfers_ = transfers; }

  Times times() { return {waiting_.seconds(), computing_.seconds()}; }
  void reset_times() {
    waiting_.reset();
    computing_.reset();
  }

 private:
  /// A part of a compute that has fewer (query, key, head) triples is not worth a call of its own: with
  /// head_dim 128 this is some 20 ms of one core, against which a call costs nothing measurable. Cutting
  /// brought the share of the forward pass that two ranks waited from 15–26 % to 1–6 % over TCP (4096 tokens,
  /// 8 heads, 2 cores).
  static constexpr std::int64_t least_pairs = std::int64_t{1} << 22;

  void check(const plan::Plan& forward, const plan::Plan& backward) const {
    forward.problem.check();
    require(forward.pass == plan::Pass::forward && backward.pass == plan::Pass::backward,
            "distributed attention takes a plan of the forward and one of the backward pass, in this order");
    require(forward.problem.ranks() == communicator_.size(),
            "the plan '{}' is for {} ranks, but the communicator has {}: make it with the communicator's "
            "topology",
            forward.schedule, forward.problem.ranks(), communicator_.size());
    require_one_problem(forward, backward);
    require(forward.problem.activation == dtype_of<T>,
            "the plan moves activations as {}, but q, k, v and d_out are {}: set Problem::activation",
            name_of(forward.problem.activation), name_of(dtype_of<T>));
    attention::check_head_dim(forward.problem.head_dim);
  }

  template <class View>
  void check_shape(const char* name, const View& view, int heads) const {
    require(view.extent_int(0) == problem_.batch && view.extent_int(1) == heads &&
                static_cast<std::int64_t>(view.extent(2)) == rows_ &&
                view.extent_int(3) == problem_.head_dim && view.span_is_contiguous(),
            "distributed attention: {} is ({}, {}, {}, {}), but the plan wants ({}, {}, {}, {}) on rank {}, "
            "contiguous",
            name, view.extent(0), view.extent(1), view.extent(2), view.extent(3), problem_.batch, heads,
            rows_, problem_.head_dim, communicator_.rank());
  }

  template <class View>
  void check_statistic(const char* name, const View& view) const {
    require(
        view.extent_int(0) == problem_.batch && view.extent_int(1) == problem_.heads &&
            static_cast<std::int64_t>(view.extent(2)) == rows_ && view.span_is_contiguous(),
        "distributed attention: {} is ({}, {}, {}), but the plan wants ({}, {}, {}) on rank {}, contiguous",
        name, view.extent(0), view.extent(1), view.extent(2), problem_.batch, problem_.heads, rows_,
        communicator_.rank());
  }

  void check_inputs(const Array4<const T, Exec>& q, const Array4<const T, Exec>& k,
                    const Array4<const T, Exec>& v) const {
    check_shape("q", q, problem_.heads);
    check_shape("k", k, problem_.kv_heads);
    check_shape("v", v, problem_.kv_heads);
  }

  /// Programs never write to what is const here: make_program refuses to.
  template <class View>
  static void set(Homes& homes, plan::Tensor tensor, const View& view) {
    homes[static_cast<std::size_t>(tensor)] = const_cast<typename View::non_const_value_type*>(view.data());
  }

  /// `results` hold nothing yet.
  void run(const Exec& exec, const std::shared_ptr<const PlanText>& program, const Homes& homes, float scale,
           std::initializer_list<plan::Tensor> results) {
    Executor<Exec, T> executor(exec, communicator_,
                               {.buffers = buffers_, .homes = homes, .mask = mask_.rule(), .scale = scale},
                               settings_);
    for (const plan::Tensor tensor : results) {
      const plan::Piece whole = problem_.whole(tensor, communicator_.rank());
      executor.start_from_nothing(block_of(whole, whole, plan::home, problem_.batch, problem_.head_dim));
    }
    executor.run(program, transfers_, waiting_, computing_);
  }

  comm::Communicator& communicator_;
  Settings settings_;
  plan::Problem problem_;
  std::int64_t rows_ = 0;  // of this rank
  std::shared_ptr<const PlanText> forward_, backward_;
  bool transfers_ = true;
  Stopwatch<Exec> waiting_, computing_;
  Buffers<Exec> buffers_;
  attention::MaskOn<Exec> mask_;
  Owned<Array3<float, Exec>> d_;  // rowsum(dO∘O) of this rank's rows
};

template <class Exec, class T>
Attention<Exec, T>::Attention(const Exec& exec, comm::Communicator& communicator, plan::Plan forward,
                              plan::Plan backward, const Settings& settings)
    : impl_(std::make_unique<Impl>(exec, communicator, forward, backward, settings)) {}

template <class Exec, class T>
Attention<Exec, T>::~Attention() = default;
template <class Exec, class T>
Attention<Exec, T>::Attention(Attention&&) noexcept = default;
template <class Exec, class T>
Attention<Exec, T>& Attention<Exec, T>::operator=(Attention&&) noexcept = default;

template <class Exec, class T>
void Attention<Exec, T>::forward(const Exec& exec, const Forward& arrays) {
  impl_->forward(exec, arrays);
}

template <class Exec, class T>
void Attention<Exec, T>::backward(const Exec& exec, const Backward& arrays) {
  impl_->backward(exec, arrays);
}

template <class Exec, class T>
void Attention<Exec, T>::set_plans(const Exec& exec, plan::Plan forward, plan::Plan backward) {
  impl_->set_plans(exec, forward, backward);
}

template <class Exec, class T>
void Attention<Exec, T>::set_transfers(bool transfers) {
  impl_->set_transfers(transfers);
}

template <class Exec, class T>
auto Attention<Exec, T>::times() const -> Times {
  return impl_->times();
}

template <class Exec, class T>
void Attention<Exec, T>::reset_times() {
  impl_->reset_times();
}

}  // namespace annulus::distributed

/// Attention<Exec, TYPE> for the host's space and, where it is another, the device's.
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
#define ANNULUS_INSTANTIATE_ATTENTION(TYPE)                                \
  template class annulus::distributed::Attention<annulus::HostExec, TYPE>; \
  template class annulus::distributed::Attention<Kokkos::DefaultExecutionSpace, TYPE>;
#else
#define ANNULUS_INSTANTIATE_ATTENTION(TYPE) \
  template class annulus::distributed::Attention<annulus::HostExec, TYPE>;
#endif
