#pragma once

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sparsity/attention.hpp>

#include "attention/sparsity/host_pairs.hpp"
#include "base/kokkos/execution/region.hpp"
#include "training/model/layers/norm_steps.hpp"

namespace annulus::model {

/// The steps of a layer up to attention's output. LayerPasses says what a step is. `first`: not computed
/// again in the backward pass, where nothing is recorded.
template <class Exec, class T>
class AttentionSteps {
  using enum Tensor;
  using Arrays = StepArrays<Exec, T>;
  using Products = LayerProducts<Exec, T>;
  using Work = LayerWork<Exec, T>;

 public:
  AttentionSteps(const Shapes& shapes, Recompute policy) : shapes_(shapes), policy_(policy), norms_(shapes) {}

  /// Whether the layer keeps the joint product of q, k and v instead of these.
  bool keeps_products() const { return policy_ == Recompute::none && qk_norm(); }

  /// Q, K and V of the layer's input.
  template <class Steps>
  void inputs(Steps& step, const Work* work, bool first) const {
    const char* const name = first ? "annulus::model::attention_inputs" : "annulus::model::recompute";
    shapes_.for_chunks([&](Chunk c) {
      norms_.forward(step, work, name, attention_norm, c);
      joint_product(step, work, c, name);
      split_heads_of_inputs(step, work, c, name);
    });
    step({q, k, v}, [&](const Arrays& a) {
      if (!first) return;
      record(work, "q", a.heads(q));
      record(work, "k", a.heads(k));
      record(work, "v", a.heads(v));
    });
  }

  /// From their joint product.
  template <class Steps>
  void split_heads_of_inputs(Steps& step, const Work* work, Chunk c, const char* name) const {
    step(name, TensorSet{qkv, q, k, v} | of_joint_norms(), [&](const Arrays& a) {
      const HeadArrays<Exec, T> heads{a.heads(q), a.heads(k), a.heads(v)};
      if (qk_norm())
        split_qkv_norm_rope<Exec, T>(work->exec, a.matrix(qkv, c), head_norm(*work, a, c), work->rope, heads,
                                     c.first);
      else
        split_qkv_rope<Exec, T>(work->exec, a.matrix(qkv, c), work->rope, heads, c.first);
    });
  }

  /// Attention's output and LSE: the first time and under `full` of all rows, else of the early ones.
  template <class Steps>
  void attend(Steps& step, const Work* work, bool first) const {
    const bool all = first || policy_ == Recompute::full;
    step(first ? "annulus::model::attention" : "annulus::model::recompute", {q, k, v, out, lse, joined},
         [&](const Arrays& a) {
           const bool recorded = first && work->recorder.records();  // then `out` is to hold the output
           const bool joins = recorded || padded();
           clear_padding(work, a.heads(q), a.heads(k), a.heads(v));
           const typename executor::Attention<Exec, T>::Forward arrays{
               .q = a.heads(q),
               .k = a.heads(k),
               .v = a.heads(v),
               .scale = work->scale,
               .soft_cap = work->soft_cap,
               .out = a.template heads<float>(out),
               .lse = a.scores(lse),
               .finished = joins ? Strided4<T, Exec>() : a.by_heads(joined),
               .sinks = work->weights.sinks()};
           if (work->sparse != nullptr && !all) {
             work->sparse->recompute(work->exec, arrays, *work->selection, work->early_positions);
           } else if (work->sparse != nullptr) {
             if (first) select(work, a);
             work->sparse->forward(work->exec, arrays, *work->selection);
             ++work->calls.all;
             ++work->calls.sparse;
           } else if (all) {
             work->attention.forward(work->exec, arrays);
             ++work->calls.all;
           } else {
             work->attention.recompute(work->exec, arrays);
             ++work->calls.early;
           }
           if (!joins) return;
           if (recorded) {
             record(work, "out", arrays.out);
             work->recorder.all(work->exec, "lse", arrays.lse);
           }
           const Kokkos::pair<std::int64_t, std::int64_t> rows(0,
                                                               all ? shapes_.extent.tokens : shapes_.early);
           attention::convert<Exec, T>(
               work->exec,
               head_columns(Kokkos::subview(arrays.out, Kokkos::ALL, Kokkos::ALL, rows, Kokkos::ALL)),
               Kokkos::subview(a.by_heads(joined), Kokkos::ALL, Kokkos::ALL, rows, Kokkos::ALL));
         });
  }

  /// The rows of later positions, between what a layer keeps and the arrays of all rows.
  enum class Late : std::uint8_t { keep, restore };
  template <class Steps>
  void copy_late(Steps& step, const Work* work, Late direction) const {
    step({joined, lse, late_joined, late_lse}, [&](const Arrays& a) {
      const std::int64_t early = shapes_.early, late = shapes_.late(), tokens = shapes_.extent.tokens;
      const Kokkos::pair<std::int64_t, std::int64_t> rows(early, tokens);
      const auto copy = [&](const auto& kept, const auto& whole) {
        if (direction == Late::keep)
          Kokkos::deep_copy(work->exec, kept, whole);
        else
          Kokkos::deep_copy(work->exec, whole, kept);
      };
      if (late == 0) return;
      for (std::int64_t s = 0; s < shapes_.extent.sequences; ++s)
        copy(Products::rows_of(a.matrix(late_joined), {s * late, late}),
             Products::rows_of(a.matrix(joined), {s * tokens + early, late}));
      copy(a.scores(late_lse), Kokkos::subview(a.scores(lse), Kokkos::ALL, Kokkos::ALL, rows));
    });
  }

  /// Gradients of the product behind attention.
  template <class Steps>
  void out_backward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::attention_backward";
    if (block().norms_behind()) norms_.behind_backward(step, work, name, attention_out_norm, c);
    const Tensor d_product = block().norms_behind() ? d_delta : d_residual;
    if (block().out_bias)
      step(name, {d_product, norm_partial}, [&](const Arrays& a) {
        add_column_sums<Exec, T>(work->exec, a.matrix(d_product, c), work->gradients.out_bias(),
                                 a.partial(norm_partial, c.count));
      });
    step(name, {joined, d_product, d_joined}, [&](const Arrays& a) {
      Products::project_backward(work->exec, a.matrix(joined, c), work->weights.attention_out(),
                                 a.matrix(d_product, c), a.matrix(d_joined, c),
                                 work->gradients.attention_out(), work->sets_matrices(c));
    });
    step(name, {d_joined, d_out}, [&](const Arrays& a) {
      split_heads<Exec, T>(work->exec, a.matrix(d_joined, c), a.heads(d_out), c.first);
    });
  }

  /// D = rowsum(dO∘O).
  template <class Steps>
  void row_dot(Steps& step, const Work* work) const {
    step({joined, d_out, d}, [&](const Arrays& a) {
      attention::row_dot<Exec, T, T>(work->exec, a.by_heads(joined), head_columns(a.heads(d_out)),
                                     a.scores(d));
    });
  }

  template <class Steps>
  void backward(Steps& step, const Work* work) const {
    step("annulus::model::attention_backward", {q, k, v, lse, d, d_out, d_q, d_k, d_v}, [&](const Arrays& a) {
      const auto dq = a.template heads<float>(d_q), dk = a.template heads<float>(d_k),
                 dv = a.template heads<float>(d_v);
      clear_padding(work, a.heads(q), a.heads(k), a.heads(v), a.heads(d_out));
      const typename executor::Attention<Exec, T>::Backward arrays{.q = a.heads(q),
                                                                   .k = a.heads(k),
                                                                   .v = a.heads(v),
                                                                   .scale = work->scale,
                                                                   .soft_cap = work->soft_cap,
                                                                   .lse = a.scores(lse),
                                                                   .d = a.scores(d),
                                                                   .d_out = a.heads(d_out),
                                                                   .dq = dq,
                                                                   .dk = dk,
                                                                   .dv = dv,
                                                                   .sinks = work->weights.sinks(),
                                                                   .d_sinks = work->gradients.sinks()};
      if (work->audit != nullptr)
        work->audit->look_at(work->exec, work->layer, arrays,
                             work->sparse != nullptr ? work->selection.get() : nullptr);
      if (work->sparse != nullptr) {
        work->sparse->backward(work->exec, arrays, *work->selection);
        work->selection.reset();
      } else {
        work->attention.backward(work->exec, arrays);
      }
      record(work, "d_q", dq);
      record(work, "d_k", dk);
      record(work, "d_v", dv);
    });
  }

  /// Down to the gradient of the layer's input, in d_residual.
  template <class Steps>
  void inputs_backward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::attention_backward";
    // The gradient of a norm of q and k reads what went into it, which the gradient then replaces.
    const bool product_again = qk_norm() && !keeps_products();
    if (product_again) {
      norms_.forward_again(step, work, name, attention_norm, c);
      joint_product(step, work, c, name);
    }
    split_heads_backward(step, work, c);
    if (!product_again) norms_.forward_again(step, work, name, attention_norm, c);
    if (block().qkv_bias)
      step(name, {qkv, qkv_partial}, [&](const Arrays& a) {
        add_column_sums<Exec, T>(work->exec, a.matrix(qkv, c), work->gradients.qkv_bias(),
                                 a.partial(qkv_partial, c.count));
      });
    norms_.product_backward(step, work, name, attention_norm, qkv, c,
                            [](const auto& of) { return of.qkv(); });
  }

 private:
  template <class Steps>
  void joint_product(Steps& step, const Work* work, Chunk c, const char* name) const {
    const Tensor x = norms_.product_input(attention_norm);
    step(name, {x, qkv}, [&](const Arrays& a) {
      Products::project(work->exec, a.matrix(x, c), work->weights.qkv(), a.matrix(qkv, c),
                        work->weights.qkv_bias());
    });
  }

  void select(const Work* work, const Arrays& a) const {
    work->selection = work->sparse->select(work->exec, a.heads(q), a.heads(k), work->scale);
    if (!work->recorder.records()) return;
    sparsity::record_selection(
        work->exec, *work->selection, work->positions,
        [&](const char* name, const auto& flags) { work->recorder.all(HostExec(), name, flags); });
  }

  /// Gradients of the joint product of q, k and v, and of the gains of their norms.
  template <class Steps>
  void split_heads_backward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::attention_backward";
    const auto gradients_of_heads = [](const Arrays& a) -> HeadArrays<Exec, const float> {
      return {a.template heads<float>(d_q), a.template heads<float>(d_k), a.template heads<float>(d_v)};
    };
    if (!qk_norm())
      return step(name, {d_q, d_k, d_v, qkv}, [&](const Arrays& a) {
        split_qkv_rope_backward<Exec, T>(work->exec, gradients_of_heads(a), work->rope, a.matrix(qkv, c),
                                         c.first);
      });
    step(name, TensorSet{d_q, d_k, d_v, qkv, qkv_partial} | of_joint_norms(), [&](const Arrays& a) {
      split_qkv_norm_rope_backward<Exec, T>(work->exec, gradients_of_heads(a), head_norm(*work, a, c),
                                            work->rope,
                                            {.d_qkv = a.matrix(qkv, c),
                                             .d_gain = work->gradients.qk_norm(),
                                             .partial = a.partial(qkv_partial, c.count)},
                                            c.first);
    });
  }

  bool padded() const { return shapes_.config.padded_head_dim() != shapes_.config.head_dim; }
  /// Elements of heads, without the padding of their rows.
  template <class Heads>
  auto head_columns(const Heads& heads) const {
    return Kokkos::subview(heads, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL,
                           Kokkos::pair<int, int>(0, shapes_.config.head_dim));
  }
  /// Zeros behind the elements of heads, where other tensors may have left anything.
  template <class... Heads>
  void clear_padding(const Work* work, const Heads&... heads) const {
    if (!padded()) return;
    const Kokkos::pair<int, int> behind(shapes_.config.head_dim, shapes_.config.padded_head_dim());
    (Kokkos::deep_copy(work->exec, Kokkos::subview(heads, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, behind),
                       T(0.0f)),
     ...);
  }
  template <class E>
  void record(const Work* work, const char* name, const Array4<E, Exec>& heads) const {
    work->recorder.heads(work->exec, name, heads, shapes_.config.head_dim);
  }

  const Block& block() const { return shapes_.config.block; }
  bool qk_norm() const { return block().qk_norm != QkNorm::none; }
  TensorSet of_joint_norms() const {
    return block().qk_norm == QkNorm::heads ? TensorSet{joint_sums} : TensorSet();
  }
  HeadNorm<Exec, T> head_norm(const Work& work, const Arrays& a, Chunk c) const {
    const bool joint = block().qk_norm == QkNorm::heads;
    return {.gain = norms_.gain(work.weights.qk_norm()),
            .epsilon = norms_.epsilon(),
            .joint = joint,
            .row_sums = joint ? a.head_sums(c) : Array2<float, Exec>()};
  }

  const Shapes& shapes_;
  Recompute policy_;
  NormSteps<Exec, T> norms_;
};

}  // namespace annulus::model
