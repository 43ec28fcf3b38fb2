#include <annulus/model/llama.hpp>

#include <cmath>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/core/region.hpp>
#include <annulus/linalg/matmul.hpp>
#include <annulus/loss/lm_head.hpp>
#include <annulus/model/ops.hpp>

#include "core/instantiate.hpp"
#include "model/flat_weights.hpp"
#include "model/llama_buffers.hpp"
#include "model/token_upload.hpp"

namespace annulus::model {

using linalg::matmul;
using linalg::Op;

template <class Exec, class T>
class Llama<Exec, T>::Impl {
 public:
  Impl(const Exec& exec, const LlamaConfig& config, const PositionMap& positions)
      : config_(config),
        map_(config),
        rows_(positions.count),
        scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))),
        scratch_(exec, config, rows_),
        ids_(exec, rows_),
        cosine_(activation<Array2<float, Exec>>(exec, "rope_cosine", rows_, config.head_dim / 2)),
        sine_(activation<Array2<float, Exec>>(exec, "rope_sine", rows_, config.head_dim / 2)),
        last_(activation<Array2<T, Exec>>(exec, "last", rows_, config.hidden)),
        last_inverse_rms_(activation<Array1<float, Exec>>(exec, "last_inverse_rms", rows_)),
        d_residual_(activation<Array2<T, Exec>>(exec, "d_residual", rows_, config.hidden)) {
    for (int i = 0; i < config.layers; ++i) layers_.emplace_back(exec, config, rows_);
    rope_table(exec, positions, config.rope_theta, *cosine_, *sine_);
  }

  const LlamaConfig& config() const { return config_; }
  const ParameterMap& map() const { return map_; }

  void run(const Exec& exec, const TokenRows& rows, Attention& attention, const FlatWeights<Exec, T>& weights,
           float grad_scale, trace::Recorder* recorder) {
    require(static_cast<std::int64_t>(weights.weights.extent(0)) == map_.size(),
            "the parameter buffer has {} elements, the model {}", weights.weights.extent(0), map_.size());
    check(rows.tokens, rows.targets);
    weights_ = weights;
    recorder_ = recorder;
    ids_.set(exec, rows.tokens, rows.targets);
    forward(exec, attention);

    const Region region("annulus::model::lm_head");
    const auto head = matrix(map_.lm_head(), config_.vocabulary, config_.hidden);
    const Array2<const T, Exec> normed = *scratch_.normed;
    record(exec, "normed", normed);
    if (weights.gradients.data() == nullptr) {
      lm_head_.forward(exec, normed, head, ids_.targets());
      return;
    }
    ids_.sort(exec);
    lm_head_.forward_backward(exec, normed, head, ids_.targets(),
                              {.scale = grad_scale,
                               .d_hidden = *scratch_.d_normed,
                               .d_weight = d_matrix(map_.lm_head(), config_.vocabulary, config_.hidden)});
    record(exec, "d_normed", *scratch_.d_normed);
    backward(exec, attention);
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

  Array2<const T, Exec> matrix(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return weights_.matrix(offset, rows, columns);
  }
  Array2<float, Exec> d_matrix(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return weights_.matrix_gradient(offset, rows, columns);
  }
  Array1<const T, Exec> gain(std::int64_t offset) const { return weights_.vector(offset, config_.hidden); }
  // Of the norm whose gain lies at `offset`.
  NormGradients<Exec, T> norm_gradients(std::int64_t offset) const {
    return {.d_x = *d_residual_,
            .d_gain = weights_.vector_gradient(offset, config_.hidden),
            .partial = *scratch_.norm_partial};
  }
  std::int64_t q_width() const { return std::int64_t{config_.heads} * config_.head_dim; }
  std::int64_t qkv_width() const {
    return std::int64_t{config_.heads + 2 * config_.kv_heads} * config_.head_dim;
  }

  // out = x · wᵀ: x (tokens, in), w (out, in)
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
    require(static_cast<std::int64_t>(tokens.size()) == rows_ && tokens.size() == targets.size(),
            "{} tokens and {} targets were given, this rank holds {} rows", tokens.size(), targets.size(),
            rows_);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      require(tokens[i] >= 0 && tokens[i] < config_.vocabulary,
              "token id {} at row {} is outside the model's vocabulary of {}: set model.vocabulary to that "
              "of the data",
              tokens[i], i, config_.vocabulary);
  }

  // Leaves the normed output of the last layer in scratch_.normed.
  void forward(const Exec& exec, Attention& attention) {
    const Region region("annulus::model::forward");
    const auto input_of = [&](int layer) {
      return layer < config_.layers ? *layers_[static_cast<std::size_t>(layer)].input : *last_;
    };
    embed<Exec, T>(exec, ids_.tokens(), matrix(map_.embedding(), config_.vocabulary, config_.hidden),
                   input_of(0));
    for (int i = 0; i < config_.layers; ++i) layer_forward(exec, attention, i, input_of(i + 1));
    record(exec, "last", *last_);
    rms_norm<Exec, T>(exec, *last_, gain(map_.final_norm()), config_.norm_epsilon, *scratch_.normed,
                      *last_inverse_rms_);
  }

  void layer_forward(const Exec& exec, Attention& attention, int layer, const Array2<T, Exec>& output) {
    const LayerParameters& p = map_.layer(layer);
    LayerActivations<Exec, T>& a = layers_[static_cast<std::size_t>(layer)];
    const LayerScratch<Exec, T>& s = scratch_;
    record(exec, layer, "input", *a.input);
    {
      const Region region("annulus::model::attention");
      rms_norm<Exec, T>(exec, *a.input, gain(p.attention_norm), config_.norm_epsilon, *s.normed,
                        *a.attention_inverse_rms);
      project(exec, *s.normed, matrix(p.qkv, qkv_width(), config_.hidden), *s.qkv);
      split_rotate<Exec, T>(exec, *s.qkv, {*cosine_, *sine_}, {*a.q, *a.k, *a.v});
      record(exec, layer, "q", *a.q);
      record(exec, layer, "k", *a.k);
      record(exec, layer, "v", *a.v);
      attention.forward(exec,
                        {.q = *a.q, .k = *a.k, .v = *a.v, .scale = scale_, .out = *a.out, .lse = *a.lse});
      record(exec, layer, "out", *a.out);
      record(exec, layer, "lse", *a.lse);
      join_heads<Exec, T>(exec, *a.out, *s.joined);
      project_onto(exec, *s.joined, matrix(p.attention_out, config_.hidden, q_width()), *a.input, *a.middle);
      record(exec, layer, "middle", *a.middle);
    }
    const Region region("annulus::model::ffn");
    rms_norm<Exec, T>(exec, *a.middle, gain(p.ffn_norm), config_.norm_epsilon, *s.normed, *a.ffn_inverse_rms);
    project(exec, *s.normed, matrix(p.gate_up, 2 * config_.ffn, config_.hidden), *a.gate_up);
    record(exec, layer, "gate_up", *a.gate_up);
    swiglu<Exec, T>(exec, *a.gate_up, *s.ffn);
    record(exec, layer, "ffn", *s.ffn);
    project_onto(exec, *s.ffn, matrix(p.down, config_.hidden, config_.ffn), *a.middle, output);
  }

  // Starts from the gradient of the normed output in scratch_.d_normed.
  void backward(const Exec& exec, Attention& attention) {
    const Region region("annulus::model::backward");
    Kokkos::deep_copy(exec, *d_residual_, T(0.0f));
    rms_norm_backward<Exec, T>(exec, *last_, gain(map_.final_norm()), *last_inverse_rms_, *scratch_.d_normed,
                               norm_gradients(map_.final_norm()));
    record(exec, "d_last", *d_residual_);
    for (int i = config_.layers - 1; i >= 0; --i) layer_backward(exec, attention, i);
    embed_backward<Exec, T>(exec, ids_.tokens(), ids_.order(), *d_residual_,
                            d_matrix(map_.embedding(), config_.vocabulary, config_.hidden),
                            *scratch_.norm_partial);
  }

  // d_residual_ holds the gradient of the layer's output and, on return, that of its input.
  void layer_backward(const Exec& exec, Attention& attention, int layer) {
    const LayerParameters& p = map_.layer(layer);
    const LayerActivations<Exec, T>& a = layers_[static_cast<std::size_t>(layer)];
    const LayerScratch<Exec, T>& s = scratch_;
    {
      const Region region("annulus::model::ffn_backward");
      swiglu<Exec, T>(exec, *a.gate_up, *s.ffn);
      project_backward(exec, *s.ffn, matrix(p.down, config_.hidden, config_.ffn), *d_residual_, *s.d_ffn,
                       d_matrix(p.down, config_.hidden, config_.ffn));
      record(exec, layer, "d_ffn", *s.d_ffn);
      // In place: gate and up are not needed again.
      swiglu_backward<Exec, T>(exec, *a.gate_up, *s.d_ffn, *a.gate_up);
      record(exec, layer, "d_gate_up", *a.gate_up);
      rms_norm_again<Exec, T>(exec, *a.middle, gain(p.ffn_norm), *a.ffn_inverse_rms, *s.normed);
      project_backward(exec, *s.normed, matrix(p.gate_up, 2 * config_.ffn, config_.hidden), *a.gate_up,
                       *s.d_normed, d_matrix(p.gate_up, 2 * config_.ffn, config_.hidden));
      rms_norm_backward<Exec, T>(exec, *a.middle, gain(p.ffn_norm), *a.ffn_inverse_rms, *s.d_normed,
                                 norm_gradients(p.ffn_norm));
      record(exec, layer, "d_middle", *d_residual_);
    }
    const Region region("annulus::model::attention_backward");
    join_heads<Exec, T>(exec, *a.out, *s.joined);
    project_backward(exec, *s.joined, matrix(p.attention_out, config_.hidden, q_width()), *d_residual_,
                     *s.joined, d_matrix(p.attention_out, config_.hidden, q_width()));
    split_heads<Exec, T>(exec, *s.joined, *s.d_out);
    record(exec, layer, "d_out", *s.d_out);
    attention.backward(exec, {.q = *a.q,
                              .k = *a.k,
                              .v = *a.v,
                              .scale = scale_,
                              .out = *a.out,
                              .lse = *a.lse,
                              .d_out = *s.d_out,
                              .dq = *s.dq,
                              .dk = *s.dk,
                              .dv = *s.dv});
    record(exec, layer, "d_q", *s.dq);
    record(exec, layer, "d_k", *s.dk);
    record(exec, layer, "d_v", *s.dv);
    split_rotate_backward<Exec, T>(exec, {*s.dq, *s.dk, *s.dv}, {*cosine_, *sine_}, *s.qkv);
    rms_norm_again<Exec, T>(exec, *a.input, gain(p.attention_norm), *a.attention_inverse_rms, *s.normed);
    project_backward(exec, *s.normed, matrix(p.qkv, qkv_width(), config_.hidden), *s.qkv, *s.d_normed,
                     d_matrix(p.qkv, qkv_width(), config_.hidden));
    rms_norm_backward<Exec, T>(exec, *a.input, gain(p.attention_norm), *a.attention_inverse_rms, *s.d_normed,
                               norm_gradients(p.attention_norm));
    record(exec, layer, "d_input", *d_residual_);
  }

  LlamaConfig config_;
  ParameterMap map_;
  std::int64_t rows_;
  float scale_;
  std::vector<LayerActivations<Exec, T>> layers_;
  LayerScratch<Exec, T> scratch_;
  TokenUpload<Exec> ids_;
  Owned<Array2<float, Exec>> cosine_, sine_;     // (tokens, head_dim / 2)
  Owned<Array2<T, Exec>> last_;                  // (tokens, hidden): output of the last layer
  Owned<Array1<float, Exec>> last_inverse_rms_;  // (tokens)
  Owned<Array2<T, Exec>> d_residual_;            // (tokens, hidden)
  loss::LmHeadLoss<Exec, T> lm_head_;
  FlatWeights<Exec, T> weights_;         // of the sequence under way
  trace::Recorder* recorder_ = nullptr;  // likewise; null: nothing is recorded
};

template <class Exec, class T>
Llama<Exec, T>::Llama(const Exec& exec, const LlamaConfig& config, const PositionMap& positions)
    : impl_(std::make_unique<Impl>(exec, config, positions)) {}
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
void Llama<Exec, T>::train(const Exec& exec, const TokenRows& rows, Attention& attention,
                           const Array1<const T, Exec>& parameters, const Gradient& gradient,
                           trace::Recorder* recorder) {
  require(gradient.sum.extent(0) == parameters.extent(0),
          "the gradient buffer has {} elements, the parameter buffer {}", gradient.sum.extent(0),
          parameters.extent(0));
  impl_->run(exec, rows, attention, {parameters, gradient.sum}, gradient.scale, recorder);
}

template <class Exec, class T>
void Llama<Exec, T>::evaluate(const Exec& exec, const TokenRows& rows, Attention& attention,
                              const Array1<const T, Exec>& parameters) {
  impl_->run(exec, rows, attention, {parameters, {}}, 0.0f, nullptr);
}

template <class Exec, class T>
Loss Llama<Exec, T>::take_loss(const Exec& exec) {
  return impl_->take_loss(exec);
}

#define ANNULUS_INSTANTIATE(Exec, T) template class Llama<Exec, T>;
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::model
