#pragma once

#include <annulus/attention/local.hpp>
#include <annulus/core/region.hpp>
#include <annulus/linalg/matmul.hpp>
#include <annulus/model/llama.hpp>
#include <annulus/model/ops.hpp>
#include <annulus/sparsity/attention.hpp>
#include <annulus/sparsity/host_pairs.hpp>
#include <optional>

#include "model/layer_arrays.hpp"
#include "model/layer_weights.hpp"
#include "model/row_recorder.hpp"

namespace annulus::model {

/// What the kernels of a layer take besides its arrays.
template <class Exec, class T>
struct LayerWork {
  const Exec& exec;
  distributed::Attention<Exec, T>& attention;
  sparsity::Attention<Exec, T>* sparse = nullptr;       // null: all pairs
  std::optional<sparsity::Selection<Exec>>& selection;  // of the layer, with `sparse`
  std::optional<int> audited_head;                      // likewise
  std::int64_t early_positions = 0;                     // ActivationOptions::early_positions
  PositionMap positions;                                // of the rows of a sequence
  LayerWeights<Exec, const T> weights;
  LayerWeights<Exec, float> gradients;  // of the weights, added to; forward takes none
  RopeTable<Exec> rope;
  float scale = 1;         // of the scores
  Array2<T, Exec> output;  // (rows, hidden): forward writes it
  RowRecorder& recorder;
  AttentionCalls& calls;
};

/// The forward and the backward pass of a layer, step by step. A step names the tensors that it reads and
/// writes, and its kernels see no others. `Steps` runs the kernels (RunSteps), or takes down which tensor
/// lives for how long (Lifetimes); then nothing looks at `work`, which may be null.
template <class Exec, class T>
class LayerPasses {
  using enum Tensor;
  using Arrays = StepArrays<Exec, T>;

 public:
  using Work = LayerWork<Exec, T>;

  /// `early`: under sequence_selective there are queries on any rank whose attention is computed again.
  LayerPasses(const Shapes& shapes, Recompute policy, bool early)
      : shapes_(shapes), policy_(policy), early_(early) {}

  template <class Steps>
  void forward(Steps&& step, const Work* work) const {
    step({input}, [&](const Arrays& a) { work->recorder.all(work->exec, "input", a.matrix(input)); });
    attention_inputs(step, work, true);
    attend(step, work, true);
    if (policy_ == Recompute::sequence_selective) copy_late(step, work, Late::keep);
    shapes_.for_chunks([&](Chunk c) {
      feed_forward_inputs(step, work, c, true);
      step({gate_up, ffn}, [&](const Arrays& a) {
        const Region region("annulus::model::ffn");
        swiglu<Exec, T>(work->exec, a.matrix(gate_up, c), a.matrix(ffn, c));
        work->recorder.chunk(work->exec, "ffn", a.matrix(ffn, c), c);
      });
      // `last` is the output of the last layer.
      step({ffn, middle, last}, [&](const Arrays& a) {
        const Region region("annulus::model::ffn");
        project_onto(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(middle, c),
                     rows_of(work->output, c));
      });
    });
  }

  /// d_residual holds the gradient of the layer's output and, on return, that of its input.
  template <class Steps>
  void backward(Steps&& step, const Work* work) const {
    const bool sequences = policy_ == Recompute::sequence_selective;
    const bool attends = policy_ == Recompute::full || (sequences && early_);
    if (sequences) copy_late(step, work, Late::restore);
    if (attends) {
      attention_inputs(step, work, false);
      attend(step, work, false);
    }
    shapes_.for_chunks([&](Chunk c) {
      if (policy_ != Recompute::none) feed_forward_inputs(step, work, c, false);
      feed_forward_backward(step, work, c);
      attention_out_backward(step, work, c);
    });
    step({d_residual, d_out}, [&](const Arrays& a) {
      work->recorder.all(work->exec, "d_middle", a.matrix(d_residual));
      work->recorder.all(work->exec, "d_out", a.heads(d_out));
    });
    step({joined, d_out, d}, [&](const Arrays& a) {
      attention::row_dot<Exec, T, T>(work->exec, a.by_heads(joined), a.heads(d_out), a.scores(d));
    });
    if (policy_ != Recompute::none && !attends) attention_inputs(step, work, false);
    if (keeps_products())
      shapes_.for_chunks([&](Chunk c) { split_heads_of_inputs(step, work, c, "annulus::model::recompute"); });
    attention_backward(step, work);
    shapes_.for_chunks([&](Chunk c) { attention_inputs_backward(step, work, c); });
    step({d_residual},
         [&](const Arrays& a) { work->recorder.all(work->exec, "d_input", a.matrix(d_residual)); });
  }

 private:
  // --- forward; `first`: not computed again in the backward pass, where nothing is recorded ----------------

  /// Q, K and V of the layer's input.
  template <class Steps>
  void attention_inputs(Steps& step, const Work* work, bool first) const {
    const char* const name = first ? "annulus::model::attention_inputs" : "annulus::model::recompute";
    shapes_.for_chunks([&](Chunk c) {
      step({input, attention_inverse_rms, normed}, [&](const Arrays& a) {
        const Region region(name);
        rms_norm<Exec, T>(work->exec, a.matrix(input, c), work->weights.attention_norm(), epsilon(),
                          a.matrix(normed, c), a.vector(attention_inverse_rms, c));
      });
      joint_product(step, work, c, name);
      split_heads_of_inputs(step, work, c, name);
    });
    step({q, k, v}, [&](const Arrays& a) {
      if (!first) return;
      work->recorder.all(work->exec, "q", a.heads(q));
      work->recorder.all(work->exec, "k", a.heads(k));
      work->recorder.all(work->exec, "v", a.heads(v));
    });
  }

  /// With its bias, which is added before the product is rounded.
  template <class Steps>
  void joint_product(Steps& step, const Work* work, Chunk c, const char* name) const {
    step({normed, qkv}, [&](const Arrays& a) {
      const Region region(name);
      const Matrix x = a.matrix(normed, c), w = work->weights.qkv();
      const Array2<T, Exec> product = a.matrix(qkv, c);
      if (!shapes_.config.qkv_bias) return project(work->exec, x, w, product);
      fill_rows<Exec, T>(work->exec, work->weights.qkv_bias(), product);
      project_onto(work->exec, x, w, product, product);
    });
  }

  /// From their joint product.
  template <class Steps>
  void split_heads_of_inputs(Steps& step, const Work* work, Chunk c, const char* name) const {
    step({qkv, q, k, v}, [&](const Arrays& a) {
      const Region region(name);
      const HeadArrays<Exec, T> heads{a.heads(q), a.heads(k), a.heads(v)};
      if (qk_norm())
        split_qkv_norm_rope<Exec, T>(work->exec, a.matrix(qkv, c), head_norm(*work), work->rope, heads,
                                     c.first);
      else
        split_qkv_rope<Exec, T>(work->exec, a.matrix(qkv, c), work->rope, heads, c.first);
    });
  }

  /// Attention's output and LSE: the first time and under `full` of all rows, else of the early ones.
  template <class Steps>
  void attend(Steps& step, const Work* work, bool first) const {
    const bool all = first || policy_ == Recompute::full;
    step({q, k, v, out, lse}, [&](const Arrays& a) {
      const Region region(first ? "annulus::model::attention" : "annulus::model::recompute");
      const typename distributed::Attention<Exec, T>::Forward arrays{.q = a.heads(q),
                                                                     .k = a.heads(k),
                                                                     .v = a.heads(v),
                                                                     .scale = work->scale,
                                                                     .out = a.template heads<float>(out),
                                                                     .lse = a.scores(lse)};
      if (work->sparse != nullptr && !all) {
        work->sparse->recompute(work->exec, arrays, work->selection.value(), work->early_positions);
      } else if (work->sparse != nullptr) {
        if (first) select(work, a);
        work->sparse->forward(work->exec, arrays, work->selection.value());
        if (first && work->audited_head) work->sparse->audit(work->exec, arrays, *work->audited_head);
        ++work->calls.all;
        ++work->calls.sparse;
      } else if (all) {
        work->attention.forward(work->exec, arrays);
        ++work->calls.all;
      } else {
        work->attention.recompute(work->exec, arrays);
        ++work->calls.early;
      }
      if (!first) return;
      work->recorder.all(work->exec, "out", a.template heads<float>(out));
      work->recorder.all(work->exec, "lse", a.scores(lse));
    });
    step({out, joined}, [&](const Arrays& a) {
      if (all) return join_heads<Exec, T>(work->exec, a.template heads<float>(out), a.matrix(joined), 0);
      for (std::int64_t s = 0; s < shapes_.extent.sequences; ++s) {
        const std::int64_t row = s * shapes_.extent.tokens;
        join_heads<Exec, T>(work->exec, a.template heads<float>(out),
                            rows_of(a.matrix(joined), {row, shapes_.early}), row);
      }
    });
  }

  void select(const Work* work, const Arrays& a) const {
    work->selection = work->sparse->select(work->exec, a.heads(q), a.heads(k), work->scale);
    if (!work->recorder.records()) return;
    const sparsity::Marks marks = sparsity::marks_of(work->exec, *work->selection, work->positions);
    work->recorder.all(HostExec(), "selected_columns", marks.columns);
    work->recorder.all(HostExec(), "selected_slashes", marks.slashes);
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
        copy(rows_of(a.matrix(late_joined), {s * late, late}),
             rows_of(a.matrix(joined), {s * tokens + early, late}));
      copy(a.scores(late_lse), Kokkos::subview(a.scores(lse), Kokkos::ALL, Kokkos::ALL, rows));
    });
  }

  /// The residual stream behind attention, and gate and up of the feed-forward layer.
  template <class Steps>
  void feed_forward_inputs(Steps& step, const Work* work, Chunk c, bool first) const {
    const char* const name = first ? "annulus::model::ffn_inputs" : "annulus::model::recompute";
    step({joined, input, middle}, [&](const Arrays& a) {
      const Region region(name);
      project_onto(work->exec, a.matrix(joined, c), work->weights.attention_out(), a.matrix(input, c),
                   a.matrix(middle, c));
      if (first) work->recorder.chunk(work->exec, "middle", a.matrix(middle, c), c);
    });
    step({middle, ffn_inverse_rms, normed}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm<Exec, T>(work->exec, a.matrix(middle, c), work->weights.ffn_norm(), epsilon(),
                        a.matrix(normed, c), a.vector(ffn_inverse_rms, c));
    });
    step({normed, gate_up}, [&](const Arrays& a) {
      const Region region(name);
      project(work->exec, a.matrix(normed, c), work->weights.gate_up(), a.matrix(gate_up, c));
      if (first) work->recorder.chunk(work->exec, "gate_up", a.matrix(gate_up, c), c);
    });
  }

  // --- backward --------------------------------------------------------------------------------------------

  template <class Steps>
  void feed_forward_backward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::ffn_backward";
    step({gate_up, ffn}, [&](const Arrays& a) {
      const Region region(name);
      swiglu<Exec, T>(work->exec, a.matrix(gate_up, c), a.matrix(ffn, c));
    });
    step({ffn, d_residual, d_ffn}, [&](const Arrays& a) {
      const Region region(name);
      project_backward(work->exec, a.matrix(ffn, c), work->weights.down(), a.matrix(d_residual, c),
                       a.matrix(d_ffn, c), work->gradients.down());
      work->recorder.chunk(work->exec, "d_ffn", a.matrix(d_ffn, c), c);
    });
    step({gate_up, d_ffn}, [&](const Arrays& a) {
      const Region region(name);
      // In place: gate and up are not needed again.
      swiglu_backward<Exec, T>(work->exec, a.matrix(gate_up, c), a.matrix(d_ffn, c), a.matrix(gate_up, c));
      work->recorder.chunk(work->exec, "d_gate_up", a.matrix(gate_up, c), c);
    });
    step({middle, ffn_inverse_rms, normed}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm_recompute<Exec, T>(work->exec, a.matrix(middle, c), work->weights.ffn_norm(),
                                  a.vector(ffn_inverse_rms, c), a.matrix(normed, c));
    });
    step({normed, gate_up, d_normed}, [&](const Arrays& a) {
      const Region region(name);
      project_backward(work->exec, a.matrix(normed, c), work->weights.gate_up(), a.matrix(gate_up, c),
                       a.matrix(d_normed, c), work->gradients.gate_up());
    });
    step({middle, ffn_inverse_rms, d_normed, d_residual, norm_partial}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm_backward<Exec, T>(work->exec, a.matrix(middle, c), work->weights.ffn_norm(),
                                 a.vector(ffn_inverse_rms, c), a.matrix(d_normed, c),
                                 {.d_x = a.matrix(d_residual, c),
                                  .d_gain = work->gradients.ffn_norm(),
                                  .partial = a.partial(norm_partial, c.count)});
    });
  }

  /// Of the product behind attention.
  template <class Steps>
  void attention_out_backward(Steps& step, const Work* work, Chunk c) const {
    step({joined, d_residual, d_joined}, [&](const Arrays& a) {
      const Region region("annulus::model::attention_backward");
      project_backward(work->exec, a.matrix(joined, c), work->weights.attention_out(),
                       a.matrix(d_residual, c), a.matrix(d_joined, c), work->gradients.attention_out());
    });
    step({d_joined, d_out}, [&](const Arrays& a) {
      const Region region("annulus::model::attention_backward");
      split_heads<Exec, T>(work->exec, a.matrix(d_joined, c), a.heads(d_out), c.first);
    });
  }

  template <class Steps>
  void attention_backward(Steps& step, const Work* work) const {
    step({q, k, v, lse, d, d_out, d_q, d_k, d_v}, [&](const Arrays& a) {
      const Region region("annulus::model::attention_backward");
      const auto dq = a.template heads<float>(d_q), dk = a.template heads<float>(d_k),
                 dv = a.template heads<float>(d_v);
      const typename distributed::Attention<Exec, T>::Backward arrays{.q = a.heads(q),
                                                                      .k = a.heads(k),
                                                                      .v = a.heads(v),
                                                                      .scale = work->scale,
                                                                      .lse = a.scores(lse),
                                                                      .d = a.scores(d),
                                                                      .d_out = a.heads(d_out),
                                                                      .dq = dq,
                                                                      .dk = dk,
                                                                      .dv = dv};
      if (work->sparse != nullptr) {
        work->sparse->backward(work->exec, arrays, work->selection.value());
        work->selection.reset();
      } else {
        work->attention.backward(work->exec, arrays);
      }
      work->recorder.all(work->exec, "d_q", dq);
      work->recorder.all(work->exec, "d_k", dk);
      work->recorder.all(work->exec, "d_v", dv);
    });
  }

  /// Gradients of the joint product of q, k and v, and of the gains of their norms.
  template <class Steps>
  void split_heads_backward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::attention_backward";
    const auto gradients_of_heads = [](const Arrays& a) -> HeadArrays<Exec, const float> {
      return {a.template heads<float>(d_q), a.template heads<float>(d_k), a.template heads<float>(d_v)};
    };
    if (!qk_norm())
      return step({d_q, d_k, d_v, qkv}, [&](const Arrays& a) {
        const Region region(name);
        split_qkv_rope_backward<Exec, T>(work->exec, gradients_of_heads(a), work->rope, a.matrix(qkv, c),
                                         c.first);
      });
    step({d_q, d_k, d_v, qkv, qkv_partial}, [&](const Arrays& a) {
      const Region region(name);
      split_qkv_norm_rope_backward<Exec, T>(work->exec, gradients_of_heads(a), head_norm(*work), work->rope,
                                            {.d_qkv = a.matrix(qkv, c),
                                             .d_gain = work->gradients.qk_norm(),
                                             .partial = a.partial(qkv_partial, c.count)},
                                            c.first);
    });
  }

  /// What the joint product of q, k and v reads, again.
  template <class Steps>
  void normed_input(Steps& step, const Work* work, Chunk c, const char* name) const {
    step({input, attention_inverse_rms, normed}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm_recompute<Exec, T>(work->exec, a.matrix(input, c), work->weights.attention_norm(),
                                  a.vector(attention_inverse_rms, c), a.matrix(normed, c));
    });
  }

  template <class Steps>
  void attention_inputs_backward(Steps& step, const Work* work, Chunk c) const {
    static constexpr const char* name = "annulus::model::attention_backward";
    // The gradient of a norm of q and k reads what went into it, which the gradient then replaces.
    const bool product_again = qk_norm() && !keeps_products();
    if (product_again) {
      normed_input(step, work, c, name);
      joint_product(step, work, c, name);
    }
    split_heads_backward(step, work, c);
    if (!product_again) normed_input(step, work, c, name);
    if (shapes_.config.qkv_bias)
      step({qkv, qkv_partial}, [&](const Arrays& a) {
        const Region region(name);
        add_column_sums<Exec, T>(work->exec, a.matrix(qkv, c), work->gradients.qkv_bias(),
                                 a.partial(qkv_partial, c.count));
      });
    step({normed, qkv, d_normed}, [&](const Arrays& a) {
      const Region region(name);
      project_backward(work->exec, a.matrix(normed, c), work->weights.qkv(), a.matrix(qkv, c),
                       a.matrix(d_normed, c), work->gradients.qkv());
    });
    step({input, attention_inverse_rms, d_normed, d_residual, norm_partial}, [&](const Arrays& a) {
      const Region region(name);
      rms_norm_backward<Exec, T>(work->exec, a.matrix(input, c), work->weights.attention_norm(),
                                 a.vector(attention_inverse_rms, c), a.matrix(d_normed, c),
                                 {.d_x = a.matrix(d_residual, c),
                                  .d_gain = work->gradients.attention_norm(),
                                  .partial = a.partial(norm_partial, c.count)});
    });
  }

  // --- the model -------------------------------------------------------------------------------------------

  float epsilon() const { return shapes_.config.norm_epsilon; }
  bool qk_norm() const { return shapes_.config.qk_norm; }
  /// Of q, k and v, instead of these.
  bool keeps_products() const { return policy_ == Recompute::none && qk_norm(); }
  HeadNorm<Exec, T> head_norm(const Work& work) const { return {work.weights.qk_norm(), epsilon()}; }

  // --- products --------------------------------------------------------------------------------------------

  using Matrix = Array2<const T, Exec>;

  /// out = x · wᵀ: x (rows, in), w (out, in)
  static void project(const Exec& exec, const Matrix& x, const Matrix& w, const Array2<T, Exec>& out) {
    linalg::matmul<Exec, T, T>(exec, {.op_b = linalg::Op::transpose}, x, w, out);
  }
  /// out = x · wᵀ + residual, which may be out
  static void project_onto(const Exec& exec, const Matrix& x, const Matrix& w, const Matrix& residual,
                           const Array2<T, Exec>& out) {
    linalg::matmul<Exec, T, T>(exec, {.op_b = linalg::Op::transpose, .beta = 1.0f}, x, w, residual, out);
  }
  /// The gradients of project: d_w += d_outᵀ · x, and d_x = d_out · w.
  static void project_backward(const Exec& exec, const Matrix& x, const Matrix& w, const Matrix& d_out,
                               const Array2<T, Exec>& d_x, const Array2<float, Exec>& d_w) {
    linalg::matmul<Exec, T, float>(exec, {.op_a = linalg::Op::transpose, .beta = 1.0f}, d_out, x, d_w);
    linalg::matmul<Exec, T, T>(exec, {}, d_out, w, d_x);
  }

  static Array2<T, Exec> rows_of(const Array2<T, Exec>& all, Chunk c) {
    return Array2<T, Exec>(all.data() + c.first * all.extent_int(1), c.count, all.extent_int(1));
  }

  const Shapes& shapes_;
  Recompute policy_;
  bool early_;
};

}  // namespace annulus::model
