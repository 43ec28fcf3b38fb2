#include <annulus/model/llama.hpp>

#include <cmath>
#include <optional>
#include <utility>

#include <annulus/attention/local.hpp>
#include <annulus/base/error.hpp>
#include <annulus/core/region.hpp>
#include <annulus/linalg/matmul.hpp>
#include <annulus/loss/lm_head.hpp>
#include <annulus/model/ops.hpp>

#include "core/instantiate.hpp"
#include "model/flat_unit.hpp"
#include "model/llama_buffers.hpp"
#include "model/token_upload.hpp"

namespace annulus::model {

using linalg::matmul;
using linalg::Op;

template <class Exec, class T>
class Llama<Exec, T>::Impl {
 public:
  Impl(const Exec& exec, const LlamaConfig& config, const PositionMap& positions, const Options& options)
      : config_(config),
        map_(config),
        extent_{options.sequences, positions.count},
        scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))),
        activations_(exec, config, extent_, options.recompute),
        scratch_(exec, config, extent_),
        ids_(exec, extent_.rows()),
        cosine_(activation<Array2<float, Exec>>(exec, "rope_cosine", extent_.tokens, config.head_dim / 2)),
        sine_(activation<Array2<float, Exec>>(exec, "rope_sine", extent_.tokens, config.head_dim / 2)),
        last_(activation<Array2<T, Exec>>(exec, "last", extent_.rows(), config.hidden)),
        last_inverse_rms_(activation<Array1<float, Exec>>(exec, "last_inverse_rms", extent_.rows())),
        d_residual_(activation<Array2<T, Exec>>(exec, "d_residual", extent_.rows(), config.hidden)) {
    rope_table(exec, positions, config.rope_theta, *cosine_, *sine_);
  }

  const LlamaConfig& config() const { return config_; }
  const ParameterMap& map() const { return map_; }

  void forward(const Exec& exec, const TokenRows& rows, const Pass& pass) {
    check(rows.tokens, rows.targets);
    recorder_ = pass.recorder;
    ids_.set(exec, rows.tokens, rows.targets);

    const Region region("annulus::model::forward");
    const auto input_of = [&](int layer) {
      return layer < config_.layers ? activations_.layer(layer).input : *last_;
    };
    with_weights(exec, pass, map_.embedding_unit(), map_.layer_unit(0), [&](const WeightUnit& w) {
      embed<Exec, T>(exec, ids_.tokens(), w.matrix(map_.embedding(), config_.vocabulary, config_.hidden),
                     input_of(0));
    });
    for (int i = 0; i < config_.layers; ++i) {
      const int next = i + 1 < config_.layers ? map_.layer_unit(i + 1) : map_.final_unit();
      with_weights(exec, pass, map_.layer_unit(i), next,
                   [&](const WeightUnit& w) { layer_forward(exec, pass.attention, w, i, input_of(i + 1)); });
    }
    record(exec, "last", *last_);
  }

  // Final norm and LM head, forward and backward; forward alone where `grad_scale` is empty. Leaves the
  // gradient of the last layer's output in d_residual_.
  void loss(const Exec& exec, std::optional<float> grad_scale, const Pass& pass) {
    const Region region("annulus::model::lm_head");
    const int after = grad_scale ? map_.layer_unit(config_.layers - 1) : -1;
    const auto with_head = [&](const WeightUnit& final_unit, const WeightUnit& head_unit) {
      const Array1<const T, Exec> gain = final_unit.vector(map_.final_norm(), config_.hidden);
      const auto head = head_unit.matrix(map_.lm_head(), config_.vocabulary, config_.hidden);
      const LayerScratch<Exec, T>& s = scratch_;
      rms_norm<Exec, T>(exec, *last_, gain, config_.norm_epsilon, *s.normed, *last_inverse_rms_);
      record(exec, "normed", *s.normed);
      if (!grad_scale) return lm_head_.forward(exec, *s.normed, head, ids_.targets());
      ids_.sort(exec);
      lm_head_.forward_backward(
          exec, *s.normed, head, ids_.targets(),
          {.scale = *grad_scale,
           .d_hidden = *s.d_normed,
           .d_weight = gradients(exec, pass, map_.lm_head_unit())
                           .matrix(map_.lm_head(), config_.vocabulary, config_.hidden)});
      record(exec, "d_normed", *s.d_normed);
      Kokkos::deep_copy(exec, *d_residual_, T(0.0f));
      rms_norm_backward<Exec, T>(exec, *last_, gain, *last_inverse_rms_, *s.d_normed,
                                 norm_gradients(gradients(exec, pass, map_.final_unit()), map_.final_norm()));
      pass.parameters.finish_gradients(exec, map_.final_unit());
      record(exec, "d_last", *d_residual_);
    };
    const bool tied = map_.lm_head_unit() != map_.final_unit();
    with_weights(exec, pass, map_.final_unit(), tied ? map_.lm_head_unit() : after,
                 [&](const WeightUnit& final_unit) {
                   if (!tied) return with_head(final_unit, final_unit);
                   with_weights(exec, pass, map_.lm_head_unit(), after,
                                [&](const WeightUnit& head_unit) { with_head(final_unit, head_unit); });
                 });
  }

  void backward(const Exec& exec, const Pass& pass) {
    const Region region("annulus::model::backward");
    for (int i = config_.layers - 1; i >= 0; --i) {
      const int unit = map_.layer_unit(i), next = i > 0 ? map_.layer_unit(i - 1) : -1;
      with_weights(exec, pass, unit, next, [&](const WeightUnit& w) {
        layer_backward(exec, pass.attention, w, gradients(exec, pass, unit), i);
      });
      pass.parameters.finish_gradients(exec, unit);
    }
    const int unit = map_.embedding_unit();
    embed_backward<Exec, T>(
        exec, ids_.tokens(), ids_.order(), *d_residual_,
        gradients(exec, pass, unit).matrix(map_.embedding(), config_.vocabulary, config_.hidden),
        *scratch_.norm_partial);
    pass.parameters.finish_gradients(exec, unit);
  }

  Loss take_loss(const Exec& exec) {
    const auto loss = lm_head_.take(exec);
    ids_.reuse();
    return {loss.loss_sum, loss.valid};
  }

 private:
  // Rows of this rank, for whoever looks for errors.
  template <class ViewType>
  void record(const Exec& exec, const std::string& name, const ViewType& rows) const {
    if (recorder_ != nullptr) recorder_->rows(exec, name, rows);
  }
  template <class ViewType>
  void record(const Exec& exec, int layer, const char* name, const ViewType& rows) const {
    if (recorder_ != nullptr) recorder_->rows(exec, fmt::format("layers.{}.{}", layer, name), rows);
  }

  using WeightUnit = FlatUnit<Exec, const T>;
  using GradientUnit = FlatUnit<Exec, float>;

  // Calls action(weights of `unit`), and gives them back.
  template <class Action>
  void with_weights(const Exec& exec, const Pass& pass, int unit, int next, const Action& action) const {
    action(WeightUnit(map_.unit(unit), pass.parameters.weights(exec, unit, next)));
    pass.parameters.release_weights(exec, unit);
  }
  GradientUnit gradients(const Exec& exec, const Pass& pass, int unit) const {
    return {map_.unit(unit), pass.parameters.gradients(exec, unit)};
  }

  // Of the norm whose gain lies at `offset`.
  NormGradients<Exec, T> norm_gradients(const GradientUnit& d_w, std::int64_t offset) const {
    return {
        .d_x = *d_residual_, .d_gain = d_w.vector(offset, config_.hidden), .partial = *scratch_.norm_partial};
  }

  std::int64_t q_width() const { return std::int64_t{config_.heads} * config_.head_dim; }
  std::int64_t qkv_width() const {
    return std::int64_t{config_.heads + 2 * config_.kv_heads} * config_.head_dim;
  }

  // out = x · wᵀ: x (rows, in), w (out, in)
  static void project(const Exec& exec, const Array2<const T, Exec>& x, const Array2<const T, Exec>& w,
                      const Array2<T, Exec>& out) {
    matmul<Exec, T, T>(exec, {.op_b = Op::transpose}, x, w, out);
  }
  // out = x · wᵀ + residual
  static void project_onto(const Exec& exec, const Array2<const T, Exec>& x, const Array2<const T, Exec>& w,
                           const Array2<const T, Exec>& residual, const Array2<T, Exec>& out) {
    matmul<Exec, T, T>(exec, {.op_b = Op::transpose, .beta = 1.0f}, x, w, residual, out);
  }
  // The gradients of project: d_w += d_outᵀ · x, then d_x = d_out · w, which may take the place of x.
  static void project_backward(const Exec& exec, const Array2<const T, Exec>& x,
                               const Array2<const T, Exec>& w, const Array2<const T, Exec>& d_out,
                               const Array2<T, Exec>& d_x, const Array2<float, Exec>& d_w) {
    matmul<Exec, T, float>(exec, {.op_a = Op::transpose, .beta = 1.0f}, d_out, x, d_w);
    matmul<Exec, T, T>(exec, {}, d_out, w, d_x);
  }

  void check(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) const {
    const std::int64_t rows = extent_.rows();
    require(static_cast<std::int64_t>(tokens.size()) == rows && tokens.size() == targets.size(),
            "{} tokens and {} targets were given, this rank holds {} rows of {} sequences", tokens.size(),
            targets.size(), rows, extent_.sequences);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int32_t token = tokens[static_cast<std::size_t>(i)];
      require(token >= 0 && token < config_.vocabulary,
              "token id {} at row {} of its sequence is outside the model's vocabulary of {}: set "
              "model.vocabulary to that of the data",
              token, i % extent_.tokens, config_.vocabulary);
    }
  }

  using Layer = typename ActivationStore<Exec, T>::Layer;

  void layer_forward(const Exec& exec, Attention& attention, const WeightUnit& w, int layer,
                     const Array2<T, Exec>& output) {
    const LayerParameters& p = map_.layer(layer);
    const Layer a = activations_.layer(layer);
    record(exec, layer, "input", a.input);
    attention_inputs(exec, w, layer, a);
    attend(exec, attention, layer, a);
    ffn_inputs(exec, w, layer, a);
    const Region region("annulus::model::ffn");
    swiglu<Exec, T>(exec, a.gate_up, *scratch_.ffn);
    record(exec, layer, "ffn", *scratch_.ffn);
    project_onto(exec, *scratch_.ffn, w.matrix(p.down, config_.hidden, config_.ffn), a.middle, output);
  }

  // Q, K and V of the layer's input.
  void attention_inputs(const Exec& exec, const WeightUnit& w, int layer, const Layer& a) {
    const Region region("annulus::model::attention_inputs");
    const LayerParameters& p = map_.layer(layer);
    const LayerScratch<Exec, T>& s = scratch_;
    rms_norm<Exec, T>(exec, a.input, w.vector(p.attention_norm, config_.hidden), config_.norm_epsilon,
                      *s.normed, a.attention_inverse_rms);
    project(exec, *s.normed, w.matrix(p.qkv, qkv_width(), config_.hidden), *s.qkv);
    split_qkv_rope<Exec, T>(exec, *s.qkv, {*cosine_, *sine_}, {a.q, a.k, a.v});
    record(exec, layer, "q", a.q);
    record(exec, layer, "k", a.k);
    record(exec, layer, "v", a.v);
  }

  void attend(const Exec& exec, Attention& attention, int layer, const Layer& a) {
    const Region region("annulus::model::attention");
    attention.forward(exec, {.q = a.q, .k = a.k, .v = a.v, .scale = scale_, .out = a.out, .lse = a.lse});
    record(exec, layer, "out", a.out);
    record(exec, layer, "lse", a.lse);
  }

  // The residual stream behind attention, and what the feed-forward layer makes of it.
  void ffn_inputs(const Exec& exec, const WeightUnit& w, int layer, const Layer& a) {
    const Region region("annulus::model::ffn_inputs");
    const LayerParameters& p = map_.layer(layer);
    const LayerScratch<Exec, T>& s = scratch_;
    join_heads<Exec, T>(exec, a.out, *s.joined);
    project_onto(exec, *s.joined, w.matrix(p.attention_out, config_.hidden, q_width()), a.input, a.middle);
    record(exec, layer, "middle", a.middle);
    rms_norm<Exec, T>(exec, a.middle, w.vector(p.ffn_norm, config_.hidden), config_.norm_epsilon, *s.normed,
                      a.ffn_inverse_rms);
    project(exec, *s.normed, w.matrix(p.gate_up, 2 * config_.ffn, config_.hidden), a.gate_up);
    record(exec, layer, "gate_up", a.gate_up);
  }

  // Computes what the layer did not keep. Tensors were recorded when they were computed first.
  void recompute(const Exec& exec, Attention& attention, const WeightUnit& w, int layer, const Layer& a) {
    if (activations_.recompute() == Recompute::none) return;
    const Region region("annulus::model::recompute");
    trace::Recorder* const recorder = std::exchange(recorder_, nullptr);
    attention_inputs(exec, w, layer, a);
    if (activations_.recompute() == Recompute::full) attend(exec, attention, layer, a);
    ffn_inputs(exec, w, layer, a);
    recorder_ = recorder;
  }

  // d_residual_ holds the gradient of the layer's output and, on return, that of its input.
  void layer_backward(const Exec& exec, Attention& attention, const WeightUnit& w, const GradientUnit& d_w,
                      int layer) {
    const LayerParameters& p = map_.layer(layer);
    const Layer a = activations_.layer(layer);
    const LayerScratch<Exec, T>& s = scratch_;
    recompute(exec, attention, w, layer, a);
    {
      const Region region("annulus::model::ffn_backward");
      swiglu<Exec, T>(exec, a.gate_up, *s.ffn);
      project_backward(exec, *s.ffn, w.matrix(p.down, config_.hidden, config_.ffn), *d_residual_, *s.d_ffn,
                       d_w.matrix(p.down, config_.hidden, config_.ffn));
      record(exec, layer, "d_ffn", *s.d_ffn);
      // In place: gate and up are not needed again.
      swiglu_backward<Exec, T>(exec, a.gate_up, *s.d_ffn, a.gate_up);
      record(exec, layer, "d_gate_up", a.gate_up);
      rms_norm_recompute<Exec, T>(exec, a.middle, w.vector(p.ffn_norm, config_.hidden), a.ffn_inverse_rms,
                                  *s.normed);
      project_backward(exec, *s.normed, w.matrix(p.gate_up, 2 * config_.ffn, config_.hidden), a.gate_up,
                       *s.d_normed, d_w.matrix(p.gate_up, 2 * config_.ffn, config_.hidden));
      rms_norm_backward<Exec, T>(exec, a.middle, w.vector(p.ffn_norm, config_.hidden), a.ffn_inverse_rms,
                                 *s.d_normed, norm_gradients(d_w, p.ffn_norm));
      record(exec, layer, "d_middle", *d_residual_);
    }
    const Region region("annulus::model::attention_backward");
    join_heads<Exec, T>(exec, a.out, *s.joined);
    project_backward(exec, *s.joined, w.matrix(p.attention_out, config_.hidden, q_width()), *d_residual_,
                     *s.joined, d_w.matrix(p.attention_out, config_.hidden, q_width()));
    split_heads<Exec, T>(exec, *s.joined, *s.d_out);
    record(exec, layer, "d_out", *s.d_out);
    attention::row_dot<Exec, T>(exec, a.out, *s.d_out, *s.d);
    attention.backward(exec, {.q = a.q,
                              .k = a.k,
                              .v = a.v,
                              .scale = scale_,
                              .lse = a.lse,
                              .d = *s.d,
                              .d_out = *s.d_out,
                              .dq = *s.dq,
                              .dk = *s.dk,
                              .dv = *s.dv});
    record(exec, layer, "d_q", *s.dq);
    record(exec, layer, "d_k", *s.dk);
    record(exec, layer, "d_v", *s.dv);
    split_qkv_rope_backward<Exec, T>(exec, {*s.dq, *s.dk, *s.dv}, {*cosine_, *sine_}, *s.qkv);
    rms_norm_recompute<Exec, T>(exec, a.input, w.vector(p.attention_norm, config_.hidden),
                                a.attention_inverse_rms, *s.normed);
    project_backward(exec, *s.normed, w.matrix(p.qkv, qkv_width(), config_.hidden), *s.qkv, *s.d_normed,
                     d_w.matrix(p.qkv, qkv_width(), config_.hidden));
    rms_norm_backward<Exec, T>(exec, a.input, w.vector(p.attention_norm, config_.hidden),
                               a.attention_inverse_rms, *s.d_normed, norm_gradients(d_w, p.attention_norm));
    record(exec, layer, "d_input", *d_residual_);
  }

  LlamaConfig config_;
  ParameterMap map_;
  Extent extent_;
  float scale_;
  ActivationStore<Exec, T> activations_;
  LayerScratch<Exec, T> scratch_;
  TokenUpload<Exec> ids_;
  Owned<Array2<float, Exec>> cosine_, sine_;     // (tokens, head_dim / 2)
  Owned<Array2<T, Exec>> last_;                  // (rows, hidden): output of the last layer
  Owned<Array1<float, Exec>> last_inverse_rms_;  // (rows)
  Owned<Array2<T, Exec>> d_residual_;            // (rows, hidden)
  loss::LmHeadLoss<Exec, T> lm_head_;
  trace::Recorder* recorder_ = nullptr;  // of the sequences under way; null: nothing is recorded
};

template <class Exec, class T>
Llama<Exec, T>::Llama(const Exec& exec, const LlamaConfig& config, const PositionMap& positions,
                      const Options& options)
    : impl_(std::make_unique<Impl>(exec, config, positions, options)) {}
template <class Exec, class T>
Llama<Exec, T>::~Llama() = default;
template <class Exec, class T>
Llama<Exec, T>::Llama(Llama&&) noexcept = default;
template <class Exec, class T>
Llama<Exec, T>& Llama<Exec, T>::operator=(Llama&&) noexcept = default;

template <class Exec, class T>
const LlamaConfig& Llama<Exec, T>::config() const {
  return impl_->config();
}
template <class Exec, class T>
const ParameterMap& Llama<Exec, T>::parameter_map() const {
  return impl_->map();
}

template <class Exec, class T>
void Llama<Exec, T>::forward(const Exec& exec, const TokenRows& rows, const Pass& pass) {
  impl_->forward(exec, rows, pass);
}
template <class Exec, class T>
void Llama<Exec, T>::loss(const Exec& exec, float grad_scale, const Pass& pass) {
  impl_->loss(exec, grad_scale, pass);
}
template <class Exec, class T>
void Llama<Exec, T>::backward(const Exec& exec, const Pass& pass) {
  impl_->backward(exec, pass);
}

template <class Exec, class T>
void Llama<Exec, T>::train(const Exec& exec, const TokenRows& rows, float grad_scale, const Pass& pass) {
  forward(exec, rows, pass);
  loss(exec, grad_scale, pass);
  backward(exec, pass);
}

template <class Exec, class T>
void Llama<Exec, T>::evaluate(const Exec& exec, const TokenRows& rows, const Pass& pass) {
  forward(exec, rows, pass);
  impl_->loss(exec, std::nullopt, pass);
}

template <class Exec, class T>
Loss Llama<Exec, T>::take_loss(const Exec& exec) {
  return impl_->take_loss(exec);
}

#define ANNULUS_INSTANTIATE(Exec, T) template class Llama<Exec, T>;
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::model
