#include <annulus/model/llama.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/core/region.hpp>
#include <annulus/linalg/matmul.hpp>
#include <annulus/loss/lm_head.hpp>
#include <annulus/model/ops.hpp>

namespace annulus::model {

namespace {

using linalg::matmul;
using linalg::Op;

template <class ViewType, class Exec, class... Extents>
Owned<ViewType> activation(const Exec& exec, const char* what, Extents... extents) {
  return Owned<ViewType>::uninitialized(exec, MemoryCategory::activations,
                                        std::string("annulus::model::") + what, extents...);
}

/// What one layer's forward leaves for its backward. Norm outputs and the SwiGLU's product are cheap to make
/// again and are not kept.
template <class Exec>
struct LayerActivations {
  Owned<Array2<float, Exec>> input;                  // (tokens, hidden)
  Owned<Array1<float, Exec>> attention_inverse_rms;  // (tokens)
  Owned<Array4<float, Exec>> q, k, v;                // (1, heads | kv_heads, tokens, head_dim), rotated
  Owned<Array4<float, Exec>> out;                    // (1, heads, tokens, head_dim)
  Owned<Array3<float, Exec>> lse;                    // (1, heads, tokens)
  Owned<Array2<float, Exec>> middle;                 // (tokens, hidden): after attention
  Owned<Array1<float, Exec>> ffn_inverse_rms;        // (tokens)
  Owned<Array2<float, Exec>> gate_up;                // (tokens, 2·ffn)

  LayerActivations(const Exec& exec, const LlamaConfig& c, std::int64_t tokens)
      : input(activation<Array2<float, Exec>>(exec, "input", tokens, c.hidden)),
        attention_inverse_rms(activation<Array1<float, Exec>>(exec, "attention_inverse_rms", tokens)),
        q(activation<Array4<float, Exec>>(exec, "q", 1, c.heads, tokens, c.head_dim)),
        k(activation<Array4<float, Exec>>(exec, "k", 1, c.kv_heads, tokens, c.head_dim)),
        v(activation<Array4<float, Exec>>(exec, "v", 1, c.kv_heads, tokens, c.head_dim)),
        out(activation<Array4<float, Exec>>(exec, "out", 1, c.heads, tokens, c.head_dim)),
        lse(activation<Array3<float, Exec>>(exec, "lse", 1, c.heads, tokens)),
        middle(activation<Array2<float, Exec>>(exec, "middle", tokens, c.hidden)),
        ffn_inverse_rms(activation<Array1<float, Exec>>(exec, "ffn_inverse_rms", tokens)),
        gate_up(activation<Array2<float, Exec>>(exec, "gate_up", tokens, 2 * c.ffn)) {}
};

/// Arrays that live inside one layer's forward or backward and serve all layers in turn.
template <class Exec>
struct Scratch {
  Owned<Array2<float, Exec>> normed;     // (tokens, hidden)
  Owned<Array2<float, Exec>> qkv;        // (tokens, (heads + 2·kv_heads)·head_dim): values, then gradients
  Owned<Array2<float, Exec>> joined;     // (tokens, heads·head_dim): attention output, then its gradient
  Owned<Array2<float, Exec>> ffn;        // (tokens, ffn)
  Owned<Array2<float, Exec>> d_ffn;      // (tokens, ffn)
  Owned<Array2<float, Exec>> d_normed;   // (tokens, hidden)
  Owned<Array4<float, Exec>> d_out, dq;  // (1, heads, tokens, head_dim)
  Owned<Array4<float, Exec>> dk, dv;     // (1, kv_heads, tokens, head_dim)
  Owned<Array2<float, Exec>> norm_partial;  // (blocks of tokens, hidden)

  Scratch(const Exec& exec, const LlamaConfig& c, std::int64_t tokens)
      : normed(activation<Array2<float, Exec>>(exec, "normed", tokens, c.hidden)),
        qkv(activation<Array2<float, Exec>>(exec, "qkv", tokens, (c.heads + 2 * c.kv_heads) * c.head_dim)),
        joined(activation<Array2<float, Exec>>(exec, "joined", tokens, c.heads * c.head_dim)),
        ffn(activation<Array2<float, Exec>>(exec, "ffn", tokens, c.ffn)),
        d_ffn(activation<Array2<float, Exec>>(exec, "d_ffn", tokens, c.ffn)),
        d_normed(activation<Array2<float, Exec>>(exec, "d_normed", tokens, c.hidden)),
        d_out(activation<Array4<float, Exec>>(exec, "d_out", 1, c.heads, tokens, c.head_dim)),
        dq(activation<Array4<float, Exec>>(exec, "dq", 1, c.heads, tokens, c.head_dim)),
        dk(activation<Array4<float, Exec>>(exec, "dk", 1, c.kv_heads, tokens, c.head_dim)),
        dv(activation<Array4<float, Exec>>(exec, "dv", 1, c.kv_heads, tokens, c.head_dim)),
        norm_partial(
            activation<Array2<float, Exec>>(exec, "norm_partial", norm_partial_rows(tokens), c.hidden)) {}
};

}  // namespace

template <class Exec>
class Llama<Exec>::Impl {
 public:
  Impl(const Exec& exec, const LlamaConfig& config, const PositionMap& positions)
      : config_(config),
        map_(config),
        rows_(positions.count),
        scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))),
        scratch_(exec, config, rows_),
        tokens_(activation<Array1<std::int32_t, Exec>>(exec, "tokens", rows_)),
        targets_(activation<Array1<std::int32_t, Exec>>(exec, "targets", rows_)),
        order_(activation<Array1<std::int32_t, Exec>>(exec, "order", rows_)),
        cosine_(activation<Array2<float, Exec>>(exec, "rope_cosine", rows_, config.head_dim / 2)),
        sine_(activation<Array2<float, Exec>>(exec, "rope_sine", rows_, config.head_dim / 2)),
        last_(activation<Array2<float, Exec>>(exec, "last", rows_, config.hidden)),
        last_inverse_rms_(activation<Array1<float, Exec>>(exec, "last_inverse_rms", rows_)),
        d_residual_(activation<Array2<float, Exec>>(exec, "d_residual", rows_, config.hidden)) {
    for (int i = 0; i < config.layers; ++i) layers_.emplace_back(exec, config, rows_);
    rope_table(exec, positions, config.rope_theta, *cosine_, *sine_);
  }

  const LlamaConfig& config() const { return config_; }
  const ParameterMap& map() const { return map_; }

  Loss run(const Exec& exec, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
           Attention& attention, const Array1<const float, Exec>& parameters, float grad_scale,
           const Array1<float, Exec>& gradients) {
    require(static_cast<std::int64_t>(parameters.extent(0)) == map_.size(),
            "the parameter buffer has {} elements, the model {}", parameters.extent(0), map_.size());
    const bool train = gradients.data() != nullptr;
    parameters_ = parameters;
    gradients_ = gradients;
    load(exec, tokens, targets);
    forward(exec, attention);

    const Region region("annulus::model::lm_head");
    const auto head = weight(map_.lm_head(), config_.vocabulary, config_.hidden);
    const Array2<const float, Exec> normed = *scratch_.normed;
    const Array1<const std::int32_t, Exec> device_targets = *targets_;
    if (train) {
      lm_head_.forward_backward(exec, normed, head, device_targets, grad_scale, *scratch_.d_normed,
                                gradient(map_.lm_head(), config_.vocabulary, config_.hidden));
      backward(exec, attention);
    } else {
      lm_head_.forward(exec, normed, head, device_targets);
    }
    const loss::LossSum loss = lm_head_.take(exec);
    return {loss.loss_sum, loss.valid};
  }

 private:
  // (rows, columns) of the flat parameter or gradient buffer
  Array2<const float, Exec> weight(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return Array2<const float, Exec>(parameters_.data() + offset, rows, columns);
  }
  Array2<float, Exec> gradient(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return Array2<float, Exec>(gradients_.data() + offset, rows, columns);
  }
  Array1<const float, Exec> gain(std::int64_t offset) const {
    return Array1<const float, Exec>(parameters_.data() + offset, config_.hidden);
  }
  Array1<float, Exec> gain_gradient(std::int64_t offset) const {
    return Array1<float, Exec>(gradients_.data() + offset, config_.hidden);
  }
  std::int64_t q_width() const { return std::int64_t{config_.heads} * config_.head_dim; }
  std::int64_t qkv_width() const {
    return std::int64_t{config_.heads + 2 * config_.kv_heads} * config_.head_dim;
  }

  // out (+)= x · wᵀ: x (tokens, in), w (out, in)
  void project(const Exec& exec, const Array2<const float, Exec>& x, const Array2<const float, Exec>& w,
               const Array2<float, Exec>& out, float beta = 0.0f) const {
    matmul<Exec, float>(exec, Op::none, Op::transpose, 1.0f, x, w, beta, out);
  }
  // The gradients of project: d_w += d_outᵀ · x, d_x = d_out · w
  void project_backward(const Exec& exec, const Array2<const float, Exec>& x,
                        const Array2<const float, Exec>& w, const Array2<const float, Exec>& d_out,
                        const Array2<float, Exec>& d_x, const Array2<float, Exec>& d_w) const {
    matmul<Exec, float>(exec, Op::transpose, Op::none, 1.0f, d_out, x, 1.0f, d_w);
    matmul<Exec, float>(exec, Op::none, Op::none, 1.0f, d_out, w, 0.0f, d_x);
  }

  void load(const Exec& exec, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
    require(static_cast<std::int64_t>(tokens.size()) == rows_ && tokens.size() == targets.size(),
            "{} tokens and {} targets were given, this rank holds {} rows", tokens.size(), targets.size(),
            rows_);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      require(tokens[i] >= 0 && tokens[i] < config_.vocabulary,
              "token id {} at row {} is outside the model's vocabulary of {}: set model.vocabulary to that "
              "of the data",
              tokens[i], i, config_.vocabulary);
    std::vector<std::int32_t> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return tokens[a] < tokens[b]; });
    upload(exec, tokens, *tokens_);
    upload(exec, targets, *targets_);
    upload(exec, order, *order_);
    exec.fence("annulus::model::load: the host arrays may go away");
  }
  static void upload(const Exec& exec, std::span<const std::int32_t> from,
                     const Array1<std::int32_t, Exec>& to) {
    Kokkos::deep_copy(exec, to,
                      Kokkos::View<const std::int32_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                          from.data(), from.size()));
  }

  // Leaves the normed output of the last layer in scratch_.normed.
  void forward(const Exec& exec, Attention& attention) {
    const Region region("annulus::model::forward");
    const auto input_of = [&](int layer) {
      return layer < config_.layers ? *layers_[static_cast<std::size_t>(layer)].input : *last_;
    };
    embed<Exec, float>(exec, *tokens_, weight(map_.embedding(), config_.vocabulary, config_.hidden),
                       input_of(0));
    for (int i = 0; i < config_.layers; ++i)
      layer_forward(exec, attention, map_.layer(i), layers_[static_cast<std::size_t>(i)], input_of(i + 1));
    rms_norm<Exec, float>(exec, *last_, gain(map_.final_norm()), config_.norm_epsilon, *scratch_.normed,
                          *last_inverse_rms_);
  }

  void layer_forward(const Exec& exec, Attention& attention, const LayerParameters& p,
                     LayerActivations<Exec>& a, const Array2<float, Exec>& output) {
    const Scratch<Exec>& s = scratch_;
    {
      const Region region("annulus::model::attention");
      rms_norm<Exec, float>(exec, *a.input, gain(p.attention_norm), config_.norm_epsilon, *s.normed,
                            *a.attention_inverse_rms);
      project(exec, *s.normed, weight(p.qkv, qkv_width(), config_.hidden), *s.qkv);
      split_rotate<Exec, float>(exec, *s.qkv, *cosine_, *sine_, *a.q, *a.k, *a.v);
      attention.forward(exec, *a.q, *a.k, *a.v, scale_, *a.out, *a.lse);
      join_heads<Exec, float>(exec, *a.out, *s.joined);
      Kokkos::deep_copy(exec, *a.middle, *a.input);
      project(exec, *s.joined, weight(p.attention_out, config_.hidden, q_width()), *a.middle, 1.0f);
    }
    const Region region("annulus::model::ffn");
    rms_norm<Exec, float>(exec, *a.middle, gain(p.ffn_norm), config_.norm_epsilon, *s.normed,
                          *a.ffn_inverse_rms);
    project(exec, *s.normed, weight(p.gate_up, 2 * config_.ffn, config_.hidden), *a.gate_up);
    swiglu<Exec, float>(exec, *a.gate_up, *s.ffn);
    Kokkos::deep_copy(exec, output, *a.middle);
    project(exec, *s.ffn, weight(p.down, config_.hidden, config_.ffn), output, 1.0f);
  }

  // Starts from the gradient of the normed output in scratch_.d_normed.
  void backward(const Exec& exec, Attention& attention) {
    const Region region("annulus::model::backward");
    Kokkos::deep_copy(exec, *d_residual_, 0.0f);
    rms_norm_backward<Exec, float>(exec, *last_, gain(map_.final_norm()), *last_inverse_rms_,
                                   *scratch_.d_normed, *d_residual_, gain_gradient(map_.final_norm()),
                                   *scratch_.norm_partial);
    for (int i = config_.layers - 1; i >= 0; --i)
      layer_backward(exec, attention, map_.layer(i), layers_[static_cast<std::size_t>(i)]);
    embed_backward<Exec, float>(exec, *tokens_, *order_, *d_residual_,
                                gradient(map_.embedding(), config_.vocabulary, config_.hidden));
  }

  // d_residual_ holds the gradient of the layer's output and, on return, that of its input.
  void layer_backward(const Exec& exec, Attention& attention, const LayerParameters& p,
                      const LayerActivations<Exec>& a) {
    const Scratch<Exec>& s = scratch_;
    {
      const Region region("annulus::model::ffn_backward");
      swiglu<Exec, float>(exec, *a.gate_up, *s.ffn);
      project_backward(exec, *s.ffn, weight(p.down, config_.hidden, config_.ffn), *d_residual_, *s.d_ffn,
                       gradient(p.down, config_.hidden, config_.ffn));
      swiglu_backward<Exec, float>(exec, *a.gate_up, *s.d_ffn,
                                   *a.gate_up);  // in place: gate and up are not needed again
      rms_norm_again<Exec, float>(exec, *a.middle, gain(p.ffn_norm), *a.ffn_inverse_rms, *s.normed);
      project_backward(exec, *s.normed, weight(p.gate_up, 2 * config_.ffn, config_.hidden), *a.gate_up,
                       *s.d_normed, gradient(p.gate_up, 2 * config_.ffn, config_.hidden));
      rms_norm_backward<Exec, float>(exec, *a.middle, gain(p.ffn_norm), *a.ffn_inverse_rms, *s.d_normed,
                                     *d_residual_, gain_gradient(p.ffn_norm), *s.norm_partial);
    }
    const Region region("annulus::model::attention_backward");
    join_heads<Exec, float>(exec, *a.out, *s.joined);
    matmul<Exec, float>(exec, Op::transpose, Op::none, 1.0f, *d_residual_, *s.joined, 1.0f,
                        gradient(p.attention_out, config_.hidden, q_width()));
    matmul<Exec, float>(exec, Op::none, Op::none, 1.0f, *d_residual_,
                        weight(p.attention_out, config_.hidden, q_width()), 0.0f, *s.joined);
    split_heads<Exec, float>(exec, *s.joined, *s.d_out);
    attention.backward(exec, *a.q, *a.k, *a.v, scale_, *a.out, *a.lse, *s.d_out, *s.dq, *s.dk, *s.dv);
    split_rotate_backward<Exec, float>(exec, *s.dq, *s.dk, *s.dv, *cosine_, *sine_, *s.qkv);
    rms_norm_again<Exec, float>(exec, *a.input, gain(p.attention_norm), *a.attention_inverse_rms, *s.normed);
    project_backward(exec, *s.normed, weight(p.qkv, qkv_width(), config_.hidden), *s.qkv, *s.d_normed,
                     gradient(p.qkv, qkv_width(), config_.hidden));
    rms_norm_backward<Exec, float>(exec, *a.input, gain(p.attention_norm), *a.attention_inverse_rms,
                                   *s.d_normed, *d_residual_, gain_gradient(p.attention_norm),
                                   *s.norm_partial);
  }

  LlamaConfig config_;
  ParameterMap map_;
  std::int64_t rows_;
  float scale_;
  std::vector<LayerActivations<Exec>> layers_;
  Scratch<Exec> scratch_;
  Owned<Array1<std::int32_t, Exec>> tokens_, targets_, order_;  // (tokens)
  Owned<Array2<float, Exec>> cosine_, sine_;                    // (tokens, head_dim / 2)
  Owned<Array2<float, Exec>> last_;                             // (tokens, hidden): output of the last layer
  Owned<Array1<float, Exec>> last_inverse_rms_;                 // (tokens)
  Owned<Array2<float, Exec>> d_residual_;                       // (tokens, hidden)
  loss::LmHeadLoss<Exec> lm_head_;
  Array1<const float, Exec> parameters_;
  Array1<float, Exec> gradients_;
};

template <class Exec>
Llama<Exec>::Llama(const Exec& exec, const LlamaConfig& config, const PositionMap& positions)
    : impl_(std::make_unique<Impl>(exec, config, positions)) {}
template <class Exec>
Llama<Exec>::~Llama() = default;
template <class Exec>
Llama<Exec>::Llama(Llama&&) noexcept = default;
template <class Exec>
Llama<Exec>& Llama<Exec>::operator=(Llama&&) noexcept = default;

template <class Exec>
const LlamaConfig& Llama<Exec>::config() const {
  return impl_->config();
}
template <class Exec>
const ParameterMap& Llama<Exec>::parameter_map() const {
  return impl_->map();
}

template <class Exec>
typename Llama<Exec>::Loss Llama<Exec>::train(const Exec& exec, std::span<const std::int32_t> tokens,
                                              std::span<const std::int32_t> targets, Attention& attention,
                                              const Array1<const float, Exec>& parameters, float grad_scale,
                                              const Array1<float, Exec>& gradients) {
  require(gradients.extent(0) == parameters.extent(0),
          "the gradient buffer has {} elements, the parameter buffer {}", gradients.extent(0),
          parameters.extent(0));
  return impl_->run(exec, tokens, targets, attention, parameters, grad_scale, gradients);
}

template <class Exec>
typename Llama<Exec>::Loss Llama<Exec>::evaluate(const Exec& exec, std::span<const std::int32_t> tokens,
                                                 std::span<const std::int32_t> targets, Attention& attention,
                                                 const Array1<const float, Exec>& parameters) {
  return impl_->run(exec, tokens, targets, attention, parameters, 0.0f, {});
}

template <class Exec>
double Llama<Exec>::dense_flops(const LlamaConfig& config, std::int64_t rows) {
  const double q_width = double(config.heads) * config.head_dim,
               kv_width = double(config.kv_heads) * config.head_dim;
  const double layer = config.hidden * (2.0 * q_width + 2.0 * kv_width + 3.0 * config.ffn);
  // Two operations a multiply-add; the backward has two products for each of the forward's.
  return 6.0 * double(rows) * (config.layers * layer + double(config.vocabulary) * config.hidden);
}

template class Llama<HostExec>;

}  // namespace annulus::model
