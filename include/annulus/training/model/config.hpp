#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/division.hpp>

namespace annulus::model {

/// Where the RMSNorms of attention and of the feed-forward layer stand.
enum class NormPlace : std::uint8_t {
  before,  ///< of what goes in (LLaMA)
  behind,  ///< of what comes out, before it is added to the residual stream (OLMo 2)
  both     ///< (Gemma)
};

/// RMSNorms of q and k before they are rotated.
enum class QkNorm : std::uint8_t {
  none,
  head,  ///< of every head of q and of k (Qwen3)
  heads  ///< of all heads of q together, and of all of k (OLMo 2)
};

/// What the feed-forward layer makes of its gate.
enum class Activation : std::uint8_t {
  silu,
  gelu_tanh  ///< x · Φ(x), with Φ by a hyperbolic tangent
};

/// Names of the values, in their order.
inline std::span<const std::string_view> names_of(NormPlace) {
  static constexpr std::array<std::string_view, 3> names{"before", "behind", "both"};
  return names;
}
inline std::span<const std::string_view> names_of(QkNorm) {
  static constexpr std::array<std::string_view, 3> names{"none", "head", "heads"};
  return names;
}
inline std::span<const std::string_view> names_of(Activation) {
  static constexpr std::array<std::string_view, 2> names{"silu", "gelu_tanh"};
  return names;
}
template <class Choice>
std::string_view name_of_choice(Choice choice) {
  return names_of(choice)[static_cast<std::size_t>(choice)];
}

/// What the layers of a family of models are made of. As it stands: a LLaMA's.
struct Block {
  NormPlace norms = NormPlace::before;
  bool gains_from_one = false;  ///< norms multiply by 1 + w (Gemma), else by w
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false;  ///< the products of q, k and v add a bias (Qwen2.5)
  bool out_bias = false;  ///< the product behind attention adds a bias (gpt-oss)
  Activation activation = Activation::silu;
  bool scaled_embedding = false;  ///< embeddings are multiplied by √hidden in the type of the weights (Gemma)

  bool norms_before() const { return norms != NormPlace::behind; }
  bool norms_behind() const { return norms != NormPlace::before; }

  bool operator==(const Block&) const = default;
};

/// The most layers; more are a slip.
inline constexpr int most_layers = 10'000;

/// What the attention of a layer is, where layers differ in it.
struct LayerKind {
  std::string mask;          ///< "causal" or "window:L,0", which a run's mask joins; empty: the run's alone
  float rope_theta = 0;      ///< base of its rotary positions; 0: the model's
  bool scaled = true;        ///< false: the model's rope scaling is not for it
  bool rotated = true;       ///< false: it has no rotary positions
  double rope_fraction = 0;  ///< Config::rope_fraction of it; 0: the model's
  float query_scale = 0;     ///< Config::query_scale of it; 0: the model's
  float soft_cap = 0;        ///< Config::soft_cap of it; 0: the model's

  bool sinks = false;  ///< a learned logit of each head joins the softmax of every row (gpt-oss)

  /// Whether keys of such a layer end at some distance, whatever the mask of the run.
  bool has_window() const { return mask.starts_with("window"); }

  bool operator==(const LayerKind&) const = default;
};

/// The kinds of `layers` layers. The texts of `pattern` are lists of entries, with a comma and a blank
/// between them: "5*window:1023,0 theta=10000 scaling=none, causal" is five layers of one kind and a layer of
/// another. All entries together are repeated and cut to the layers; no text: all layers are LayerKind(). An
/// entry is a mask, causal or window:L,0, and what differs from the model: `theta=BASE`, `fraction=PART`,
/// `scaling=none` or `rope=none`, `query_scale=NUMBER`, `soft_cap=CAP`, `sinks`. Throws Error naming
/// model.pattern and the entry, and for more than most_layers.
std::vector<LayerKind> layer_kinds(std::span<const std::string> pattern, int layers);

/// The inverse: the one pattern of these layers, without repetition; none where all are LayerKind().
std::vector<std::string> pattern_of(std::span<const LayerKind> kinds);

/// How the frequencies of rotary positions are changed for sequences longer than those that a model was
/// trained on.
enum class RopeScale : std::uint8_t {
  none,
  linear,  ///< all divided by the factor (position interpolation, Chen et al. 2023)
  llama3,  ///< long wavelengths divided by the factor, short ones kept, smooth in between (Llama 3.1)
  yarn     ///< as llama3 by a ramp over dimensions, and attention made sharper (Peng et al. 2023)
};

/// The scale of this name ("llama3"). Throws Error naming `field` when there is none.
RopeScale parse_rope_scale(std::string_view name, std::string_view field);

/// A RopeScale with its numbers. Those that a scale does not read keep their defaults.
struct RopeScaling {
  std::string name = "none";         ///< of a RopeScale
  double factor = 1;                 ///< s of linear, llama3 and yarn; at least 1
  std::int64_t original_length = 0;  ///< tokens of the sequences before; llama3 and yarn
  double low_frequency_factor = 1;   ///< llama3: wavelengths above original_length / this are divided
  double high_frequency_factor = 4;  ///< llama3: those below original_length / this are kept
  double beta_fast = 32;             ///< yarn: dimensions with more turns over original_length are kept
  double beta_slow = 1;              ///< yarn: those with fewer are divided
  double attention_factor = 0;       ///< yarn: of cos and sin; 0: 0.1 · ln(factor) + 1
  bool truncate = true;              ///< yarn: the ramp begins and ends at whole dimensions

  RopeScale scale() const { return parse_rope_scale(name, "model.rope_scaling"); }

  /// Throws Error naming the field (as "model.rope_<field>") when the numbers make no sense, or have no
  /// effect.
  void check() const;

  bool operator==(const RopeScaling&) const = default;
};

/// What rotary positions are made of: of n frequencies, number i turns elements i and n + i of a head by
/// position · inverse[i], and cos and sin are multiplied by `attention_factor`. What lies behind 2n elements
/// stays.
struct RopeFrequencies {
  std::vector<float> inverse;  // (turned elements / 2)
  double attention_factor = 1;

  bool operator==(const RopeFrequencies&) const = default;
};

/// The frequencies of a head of which `turned` elements are turned, all or its first ones. They are floats,
/// each operation rounded as transformers (modeling_rope_utils, versions 4 and 5) rounds it, because models
/// are trained with those: no element differs by more than one unit in the last place.
RopeFrequencies rope_frequencies(double theta, int turned, const RopeScaling& scaling);

/// Shape of a decoder with RMSNorm, rotary positions, grouped-query attention and a gated feed-forward layer:
/// of a LLaMA, or of a model with another block.
struct Config {
  std::int64_t vocabulary = 0;
  int layers = 2;
  int hidden = 256;   ///< width of the residual stream
  int heads = 4;      ///< query heads
  int kv_heads = 4;   ///< divides heads
  int head_dim = 64;  ///< 16 to 256, an even number; heads · head_dim need not be hidden
  int ffn = 688;      ///< width of the feed-forward layer
  float rope_theta = 10000.0f;
  double rope_fraction = 1;  ///< part of each head that is turned, its first elements (Phi-3)
  RopeScaling rope = {};     ///< for longer sequences than the model was trained on
  float norm_epsilon = 1e-5f;
  bool tied = false;  ///< the LM head shares the embedding's weights
  Block block = {};
  float query_scale = 0;  ///< scores are divided by its root (Gemma's query_pre_attn_scalar); 0: head_dim
  float soft_cap = 0;     ///< scores become soft_cap · tanh(score / soft_cap) (Gemma 2); 0: they stay
  float logit_cap = 0;    ///< logits become logit_cap · tanh(logit / logit_cap); 0: they stay
  std::vector<std::string> pattern = {};  ///< kinds of layers (layer_kinds); none: all are alike

  /// Throws Error naming the field (as "model.<field>") when the shape makes no sense.
  void check() const;

  std::int64_t q_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t kv_width() const { return std::int64_t{kv_heads} * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  /// Elements of a head's row in attention, whose kernels take multiples of 8: behind head_dim come zeros,
  /// which change no score.
  int padded_head_dim() const { return round_up(head_dim, 8); }
  /// Gains of the norms of q, and behind them those of k.
  std::int64_t q_gains() const { return block.qk_norm == QkNorm::heads ? q_width() : head_dim; }
  std::int64_t k_gains() const { return block.qk_norm == QkNorm::heads ? kv_width() : head_dim; }
  /// What scores are multiplied by, in layers of a kind, and their soft cap; 0: none.
  float score_scale(const LayerKind& kind = {}) const;
  float score_cap(const LayerKind& kind = {}) const { return kind.soft_cap > 0 ? kind.soft_cap : soft_cap; }

  /// Kinds of its layers.
  std::vector<LayerKind> kinds() const { return layer_kinds(pattern, layers); }
  /// Frequencies of its rotary positions.
  RopeFrequencies frequencies() const { return frequencies(LayerKind()); }
  /// Frequencies of layers of a kind; all 0 where they have no rotary positions, which rotates by nothing.
  RopeFrequencies frequencies(const LayerKind& kind) const;
  /// Elements of a head that positions turn in layers of a kind.
  int turned_elements(const LayerKind& kind = {}) const;
};

/// Rotary positions of the layers of a model.
struct LayerRopes {
  std::vector<RopeFrequencies> distinct;
  std::vector<int> of_layer;  ///< index of `distinct`, of each layer
};
LayerRopes layer_ropes(const Config& config);

/// A weight that rows are multiplied by, (out, in).
struct WeightMatrix {
  std::int64_t out = 0, in = 0;
};
/// Weights of a layer: q, k and v together; attention's output; gate and up together; down.
std::array<WeightMatrix, 4> layer_matrices(const Config& config);

/// Floating-point operations of forward and backward, two a multiply-add, of all products with weights over
/// `rows` tokens. The backward of a product counts as two products; what a backward computes a second time
/// does not count (model FLOPs, as in PaLM, appendix B).
double dense_flops(const Config& config, std::int64_t rows);

/// Operations of attention in all layers, over `pairs` unmasked (query, key) pairs of one head, the mean of
/// the layers.
double attention_flops(const Config& config, double pairs);

/// What a tensor of a model is, by which optimizers tell them apart.
enum class TensorKind : std::uint8_t {
  matrix,     ///< of a layer: projections of attention and of the feed-forward layer
  lm_head,    ///< of its own, not the embedding's
  embedding,  ///< also where the LM head shares it
  norm,       ///< the gains of one
  bias,
  sinks
};
/// "matrices", "lm_head", "embedding", "norms", "biases" or "sinks"; else Error beginning with `field`.
TensorKind parse_tensor_kind(std::string_view name, std::string_view field);

/// What a layer keeps from its forward pass for its backward pass; the rest is computed again there.
enum class Recompute : std::uint8_t {
  none,  ///< everything that the backward pass reads
  full,  ///< the layer's input alone (gradient checkpointing, Chen et al. 2016): the layer is computed twice
  /// The layer's input, attention's output and LSE: everything but attention is computed twice (selective
  /// checkpointing++, BurstEngine, section 3.2; the rematerialization-aware checkpoints of DistFlashAttn,
  /// section 3.3).
  selective,
  /// As selective for the later positions of a sequence; attention of the earlier queries, which cost least
  /// under a causal mask, is computed twice (sequence-level selective checkpointing, BurstEngine, section
  /// 3.2).
  sequence_selective
};
std::string_view name_of(Recompute recompute);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
Recompute parse_recompute(std::string_view name, std::string_view field);

/// How the layers of a model hold their activations. None, full and selective give the same bits, with and
/// without offload; the others differ in the order of sums.
struct ActivationOptions {
  /// Policy of each layer, or one for all of them.
  std::vector<Recompute> recompute = {Recompute::none};
  /// sequence_selective computes attention of the queries before this position again.
  std::int64_t early_positions = 0;
  /// Share of the layers whose kept tensors wait in pinned memory of the host, 0 to 1; of those that
  /// may_offload().
  double offload = 0;
  /// Norms, projections and feed-forward layers work on so many rows at once; 0: on all.
  std::int64_t chunk_rows = 0;
  /// Rows whose logits exist at once, whatever memory they take; 0: as loss::LmHeadOptions chooses.
  std::int64_t lm_head_rows = 0;
  /// No backward pass follows (Model::evaluate): layers work in two blocks in turn and keep nothing.
  bool forward_only = false;

  /// Options of a model that evaluates as one with these options trains.
  ActivationOptions without_backward() const {
    return {.recompute = {Recompute::full},
            .chunk_rows = chunk_rows,
            .lm_head_rows = lm_head_rows,
            .forward_only = true};
  }

  Recompute of(int layer) const {
    return recompute[recompute.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// A layer that keeps everything beside others that do not stays on the device: there was room for it.
  bool may_offload(int layer) const {
    return of(layer) != Recompute::none ||
           std::ranges::all_of(recompute, [](Recompute policy) { return policy == Recompute::none; });
  }
};

}  // namespace annulus::model
