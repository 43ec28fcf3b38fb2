#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <annulus/training/model/rope_scaling.hpp>

namespace annulus::model {

/// Shape of a LLaMA: pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU;
/// with qkv_bias of a Qwen2.5, with qk_norm of a Qwen3.
struct Config {
  std::int64_t vocabulary = 0;
  int layers = 2;
  int hidden = 256;   ///< width of the residual stream
  int heads = 4;      ///< query heads
  int kv_heads = 4;   ///< divides heads
  int head_dim = 64;  ///< 16 to 256 in multiples of 8; heads · head_dim need not be hidden
  int ffn = 688;      ///< width of the SwiGLU
  float rope_theta = 10000.0f;
  RopeScaling rope = {};  ///< for longer sequences than the model was trained on
  float norm_epsilon = 1e-5f;
  bool tied = false;      ///< the LM head shares the embedding's weights
  bool qkv_bias = false;  ///< the products of q, k and v add a bias
  bool qk_norm = false;   ///< every head of q and k goes through an RMSNorm before it is rotated

  /// Throws Error naming the field (as "model.<field>") when the shape makes no sense.
  void check() const;

  std::int64_t q_width() const { return std::int64_t{heads} * head_dim; }
  std::int64_t kv_width() const { return std::int64_t{kv_heads} * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }

  /// Frequencies of its rotary positions.
  RopeFrequencies frequencies() const { return rope_frequencies(rope_theta, head_dim, rope); }
};

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

/// Operations of attention in all layers, over `pairs` unmasked (query, key) pairs of one head.
double attention_flops(const Config& config, double pairs);

}  // namespace annulus::model
