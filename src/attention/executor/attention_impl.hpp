#pragma once

#include <annulus/attention/executor/attention.hpp>

#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

#include "attention/comm/staged/staged.hpp"
#include "attention/executor/agreement.hpp"
#include "attention/executor/buffers.hpp"
#include "attention/executor/executor.hpp"
#include "attention/executor/prepared_plans.hpp"
#include "attention/executor/proof/program.hpp"
#include "attention/executor/proof/proof.hpp"
#include "attention/kernels/check.hpp"
#include "attention/kernels/mask_on.hpp"
#include "attention/kernels/runs_on.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

/// The definition of Attention, instantiated by one translation unit for each element type.
namespace annulus::executor {

template <class Exec, class T>
class Attention<Exec, T>::Impl {
 public:
  /// All sequences of the batch, or one of several.
  struct BatchPart {
    std::shared_ptr<const PlanText> forward, backward, recompute;  // backward: null without a plan
    attention::MaskOn<Exec> mask;
    attention::RunsOn<Exec> runs;
    ExchangeBuffers<Exec> buffers;
  };

  Impl(const Exec& exec, comm::Communicator& communicator, std::span<const Plans> plans,
       const Settings& settings)
      : communicator_(communicator), settings_(settings) {
    set_plans(exec, plans);
  }
  Impl(const Exec& exec, std::span<const Plans> plans, const Impl& beside)
      : communicator_(beside.communicator_), settings_(beside.settings_), buffers_(beside.buffers_.beside()) {
    set_plans(exec, plans);
  }

  void set_plans(const Exec& exec, std::span<const Plans> plans) {
    std::vector<std::shared_ptr<const PreparedPlans>> prepared;
    for (const Plans& of_sequence : plans)
      prepared.push_back(std::make_shared<const PreparedPlans>(of_sequence, preparation(exec)));
    set_plans(exec, prepared);
  }

  void set_plans(const Exec& exec, std::span<const std::shared_ptr<const PreparedPlans>> prepared,
                 Agreed agreed = Agreed::in_this_call) {
    if (agreed == Agreed::in_this_call) agree(communicator_, prepared);
    require(!prepared.empty(), no_plans);
    std::vector<const Plans*> plans;
    for (const auto& of_sequence : prepared) plans.push_back(&of_sequence->plans());
    if (plans.size() > 1) require_one_batch(plans);  // alike on all ranks, as the plans are
    parts_.resize(plans.size());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      auto program = prepared[i]->programs().begin();
      const auto text = [&] { return std::make_shared<const PlanText>(communicator_, *program++); };
      const auto forward = text(), backward = plans[i]->backward ? text() : nullptr;
      BatchPart& part = parts_[i];
      part.forward = forward;
      part.backward = backward;
      part.recompute = plans[i]->recompute ? text() : forward;
      PassCapacity capacity;
      for (const auto& of_pass : prepared[i]->programs())
        capacity.of(of_pass->plan.pass).cover(of_pass->capacity);
      part.buffers = buffers_.beside();
      part.buffers.lay_out(exec, capacity, dtype_of<T>);
      part.mask.set(exec, plans[i]->forward.problem.mask);
      part.runs.set(exec, layouts_of(*plans[i]));
    }
    problem_ = plans.front()->forward.problem;
    if (plans.size() > 1) problem_.batch = static_cast<int>(plans.size());
    rows_ = problem_.owned(communicator_.rank()).count;
  }

  Preparation preparation(const Exec& exec) const {
    return {.rank = communicator_.rank(),
            .ranks = communicator_.size(),
            .dtype = dtype_of<T>,
            .cutting = {least_pairs, exec.concurrency()},
            .settings = settings_};
  }

  void reserve(const Exec& exec, const Plans& plans) {
    const int rank = communicator_.rank();
    buffers_.lay_out(exec, capacity_for_any_rows(plans, rank), dtype_of<T>);
    comm::reserve_staging(communicator_, load_for_any_rows(plans, rank));
  }

  void reserve_documents(const Exec& exec) {
    const std::int64_t tokens = problem_.mask.tokens();
    for (BatchPart& part : parts_) {
      part.mask.reserve_documents(exec, tokens);
      if (problem_.layout.kind() == Layout::Kind::balanced) part.runs.reserve(exec, tokens, problem_.ranks());
    }
  }

  void backward(const Exec& exec, const Backward& arrays) {
    const auto& [q, k, v, scale, soft_cap, lse, d, d_out, dq, dk, dv, blocks, sinks, d_sinks, on_keys] =
        arrays;
    check_inputs(q, k, v);
    check_shape("lse", plan::Tensor::lse, lse);
    check_shape("d", plan::Tensor::d, d);
    check_shape("d_out", plan::Tensor::d_o, d_out);
    check_shape("dq", plan::Tensor::dq, dq);
    check_shape("dk", plan::Tensor::dk, dk);
    check_shape("dv", plan::Tensor::dv, dv);
    require(parts_.front().backward != nullptr,
            "attention has no plan of the backward pass: give it as Plans::backward");
    if (sinks.data() != nullptr) attention::sink_gradients<Exec, T>(exec, {sinks, lse, d, d_sinks});
    using plan::Tensor;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      auto of_part = arrays_of(part, arrays);
      set(of_part, part, Tensor::q, q, Tensor::k, k, Tensor::v, v, Tensor::lse, lse, Tensor::d, d,
          Tensor::d_o, d_out, Tensor::dq, dq, Tensor::dk, dk, Tensor::dv, dv);
      run(exec, parts_[part].backward, of_part, {Tensor::dq, Tensor::dk, Tensor::dv});
    }
  }

  /// `program`: the member of each part that is run.
  void attend(const Exec& exec, const Forward& arrays, std::shared_ptr<const PlanText> BatchPart::*program) {
    const auto& [q, k, v, scale, soft_cap, out, lse, blocks, finished, sinks, on_keys] = arrays;
    check_inputs(q, k, v);
    check_shape("out", plan::Tensor::o, out);
    check_shape("lse", plan::Tensor::lse, lse);
    if (finished.data() != nullptr)
      check_shape("finished", plan::Tensor::o, finished, finished.stride(3) == 1, "rows contiguous");
    if (sinks.data() != nullptr) attention::check_sinks("sinks", sinks, "q", q);
    using plan::Tensor;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      auto of_part = arrays_of(part, arrays);
      of_part.sinks = sinks;
      set(of_part, part, Tensor::q, q, Tensor::k, k, Tensor::v, v, Tensor::o, out, Tensor::lse, lse);
      if (finished.data() != nullptr) {
        const std::size_t batch = finished.extent(0) / parts_.size();
        of_part.finished = Kokkos::subview(finished, Kokkos::pair(part * batch, (part + 1) * batch),
                                           Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
      }
      run(exec, parts_[part].*program, of_part, {Tensor::o, Tensor::lse});
    }
  }

  int steps(plan::Pass pass) const {
    int most = 0;
    for_each_plan(pass, [&](const plan::Plan& plan) { most = std::max(most, plan.steps); });
    return most;
  }

  bool queries_stay(plan::Pass pass) const {
    bool all = true;
    for_each_plan(pass, [&](const plan::Plan& plan) { all = all && plan.queries_stay; });
    return all;
  }

  bool transfers = true;
  Stopwatch<Exec> waiting, computing;

 private:
  /// A part of a compute that has fewer (query, key, head) triples is not worth a call of its own: with
  /// head_dim 128 this is some 20 ms of one core, against which a call costs nothing measurable. Cutting
  /// brought the share of the forward pass that two ranks waited from 15–26 % to 1–6 % over TCP (4096 tokens,
  /// 8 heads, 2 cores).
  static constexpr std::int64_t least_pairs = std::int64_t{1} << 22;

  template <class Visit>
  void for_each_plan(plan::Pass pass, const Visit& visit) const {
    for (const BatchPart& part : parts_) {
      const std::array texts = {part.forward, part.backward, part.recompute};  // in a loop nvcc takes no list
      for (const auto& text : texts)
        if (text != nullptr && text->program().plan.pass == pass) visit(text->program().plan);
    }
  }

  static std::vector<Layout> layouts_of(const Plans& plans) {
    std::vector<Layout> layouts;
    for (const plan::Plan* plan : plans.all()) layouts.push_back(plan->problem.layout);
    return layouts;
  }

  template <class View>
  void check_shape(std::string_view name, plan::Tensor tensor, const View& view) const {
    check_shape(name, tensor, view, view.span_is_contiguous(), "contiguous");
  }
  /// (batch, heads, rows) or (batch, heads, rows, columns), as the tensor has
  template <class View>
  void check_shape(std::string_view name, plan::Tensor tensor, const View& view, bool lies_well,
                   const char* how) const {
    const int heads = plan::is_query_side(tensor) ? problem_.heads : problem_.kv_heads;
    std::vector<std::int64_t> wanted{problem_.batch, heads, rows_}, found;
    if (View::rank() == 4) wanted.push_back(problem_.columns(tensor));
    for (std::size_t i = 0; i < View::rank(); ++i) found.push_back(static_cast<std::int64_t>(view.extent(i)));
    require(found == wanted && lies_well,
            "distributed attention: {} is ({}), but the plan wants ({}) on rank {}, {}", name,
            fmt::join(found, ", "), fmt::join(wanted, ", "), communicator_.rank(), how);
  }

  void check_inputs(const Array4<const T, Exec>& q, const Array4<const T, Exec>& k,
                    const Array4<const T, Exec>& v) const {
    check_shape("q", plan::Tensor::q, q);
    check_shape("k", plan::Tensor::k, k);
    check_shape("v", plan::Tensor::v, v);
  }

  /// The caller's arrays of a part, each behind its tensor. Programs never write to what is const here:
  /// make_program refuses to.
  template <class View, class... Others>
  void set(typename Executor<Exec, T>::PassArrays& arrays, std::size_t part, plan::Tensor tensor,
           const View& view, const Others&... others) const {
    arrays.local_arrays[static_cast<std::size_t>(tensor)] =
        const_cast<typename View::non_const_value_type*>(view.data()) + part * (view.size() / parts_.size());
    if constexpr (sizeof...(others) > 0) set(arrays, part, others...);
  }

  /// What a pass of one part works on, of `arrays` of the whole batch.
  template <class Arrays>
  typename Executor<Exec, T>::PassArrays arrays_of(std::size_t part, const Arrays& arrays) const {
    return {.buffers = parts_[part].buffers,
            .local_arrays = {},
            .mask = mask_of(part, arrays.blocks),
            .runs = parts_[part].runs,
            .scale = arrays.scale,
            .soft_cap = arrays.soft_cap,
            .heads = problem_.heads,
            .pairs = arrays.blocks.pairs,
            .on_keys = arrays.on_keys,
            .first_batch = static_cast<std::int64_t>(part) * problem_.batch / std::ssize(parts_)};
  }

  /// The mask of a part, with the block lists of its sequences.
  MaskRule mask_of(std::size_t part, const BlockLists& blocks) const {
    MaskRule rule = parts_[part].mask.rule();
    if (blocks.empty()) return rule;
    require(!rule.has_blocks(),
            "distributed attention: heads have block lists of their own, but the mask '{}' has one for all: "
            "use a mask without blocks",
            problem_.mask.outline());
    require(
        blocks.heads_of_list == 1 || blocks.heads_of_list == problem_.group(),
        "distributed attention: {} heads share a block list, but {} heads share a kv head: give a list for "
        "each head (heads_of_list 1) or for each kv head (heads_of_list {})",
        blocks.heads_of_list, problem_.group(), problem_.group());
    const std::int64_t heads =
        static_cast<std::int64_t>(problem_.batch) / std::ssize(parts_) * problem_.heads;
    rule = with_lists(rule, blocks, heads);
    return rule.from_list(static_cast<std::int64_t>(part) * rule.block_lists);
  }

  /// `results` hold nothing yet.
  void run(const Exec& exec, const std::shared_ptr<const PlanText>& program,
           const typename Executor<Exec, T>::PassArrays& arrays,
           std::initializer_list<plan::Tensor> results) {
    Executor<Exec, T> executor(exec, communicator_, arrays, settings_);
    const plan::Problem& problem = program->program().plan.problem;
    for (const plan::Tensor tensor : results) {
      const int rank = communicator_.rank();
      executor.start_from_nothing(
          block_of(problem.local(tensor, rank), problem.whole(tensor, rank), plan::local_slot, problem));
    }
    executor.run(program, transfers, waiting, computing);
  }

  comm::Communicator& communicator_;
  Settings settings_;
  plan::Problem problem_;  // with the batch of all parts; the mask is the first part's
  std::int64_t rows_ = 0;  // of this rank
  std::vector<BatchPart> parts_;
  ExchangeBuffers<Exec> buffers_;  // whose block the parts' are in
};

template <class Exec, class T>
Attention<Exec, T>::Attention(const Exec& exec, comm::Communicator& communicator, plan::Plan forward,
                              plan::Plan backward, const Settings& settings)
    : Attention(exec, communicator, {{std::move(forward), std::move(backward)}}, settings) {}
template <class Exec, class T>
Attention<Exec, T>::Attention(const Exec& exec, comm::Communicator& communicator,
                              const std::vector<Plans>& plans, const Settings& settings)
    : impl_(std::make_unique<Impl>(exec, communicator, plans, settings)) {}
template <class Exec, class T>
Attention<Exec, T>::Attention(const Exec& exec, const std::vector<Plans>& plans, const Attention& beside)
    : impl_(std::make_unique<Impl>(exec, plans, *beside.impl_)) {}

template <class Exec, class T>
Attention<Exec, T>::~Attention() = default;
template <class Exec, class T>
Attention<Exec, T>::Attention(Attention&&) noexcept = default;
template <class Exec, class T>
Attention<Exec, T>& Attention<Exec, T>::operator=(Attention&&) noexcept = default;

template <class Exec, class T>
void Attention<Exec, T>::forward(const Exec& exec, const Forward& arrays) {
  const Region region("annulus::executor::Attention::forward");
  impl_->attend(exec, arrays, &Impl::BatchPart::forward);
}

template <class Exec, class T>
void Attention<Exec, T>::recompute(const Exec& exec, const Forward& arrays) {
  const Region region("annulus::executor::Attention::recompute");
  impl_->attend(exec, arrays, &Impl::BatchPart::recompute);
}

template <class Exec, class T>
void Attention<Exec, T>::backward(const Exec& exec, const Backward& arrays) {
  const Region region("annulus::executor::Attention::backward");
  impl_->backward(exec, arrays);
}

template <class Exec, class T>
void Attention<Exec, T>::set_plans(const Exec& exec, plan::Plan forward, plan::Plan backward) {
  const Plans plans{std::move(forward), std::move(backward)};
  impl_->set_plans(exec, std::span(&plans, 1));
}
template <class Exec, class T>
void Attention<Exec, T>::set_plans(const Exec& exec, const std::vector<Plans>& plans) {
  impl_->set_plans(exec, plans);
}

template <class Exec, class T>
Prepare Attention<Exec, T>::preparation(const Exec& exec) const {
  return [preparation = impl_->preparation(exec)](Plans plans) {
    return std::make_shared<const PreparedPlans>(std::move(plans), preparation);
  };
}
template <class Exec, class T>
void Attention<Exec, T>::set_plans(const Exec& exec,
                                   const std::vector<std::shared_ptr<const PreparedPlans>>& plans,
                                   Agreed agreed) {
  impl_->set_plans(exec, plans, agreed);
}
template <class Exec, class T>
void Attention<Exec, T>::reserve(const Exec& exec, const Plans& plans) {
  impl_->reserve(exec, plans);
}
template <class Exec, class T>
void Attention<Exec, T>::reserve_documents(const Exec& exec) {
  impl_->reserve_documents(exec);
}

template <class Exec, class T>
int Attention<Exec, T>::steps(plan::Pass pass) const {
  return impl_->steps(pass);
}

template <class Exec, class T>
bool Attention<Exec, T>::queries_stay(plan::Pass pass) const {
  return impl_->queries_stay(pass);
}

template <class Exec, class T>
void Attention<Exec, T>::set_transfers(bool transfers) {
  impl_->transfers = transfers;
}

template <class Exec, class T>
auto Attention<Exec, T>::times() const -> Times {
  return {impl_->waiting.seconds(), impl_->computing.seconds()};
}

template <class Exec, class T>
void Attention<Exec, T>::reset_times() {
  impl_->waiting.reset();
  impl_->computing.reset();
}

}  // namespace annulus::executor
