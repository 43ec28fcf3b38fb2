#pragma once

#include <ostream>

#include <annulus/training/model/config.hpp>

namespace annulus::test {

/// What a model has beyond a LLaMA: biases of q, k and v (Qwen2.5), norms of q and k (Qwen3), heads whose
/// rows are padded in attention.
struct Variant {
  bool qkv_bias = false, qk_norm = false;
  int head_dim = 0;  ///< 0: the configuration's

  void set(model::Config& config) const {
    config.qkv_bias = qkv_bias;
    config.qk_norm = qk_norm;
    if (head_dim > 0) config.head_dim = head_dim;
  }
  friend std::ostream& operator<<(std::ostream& out, const Variant& variant) {
    return out << (variant.qkv_bias ? "biases" : "no biases") << (variant.qk_norm ? ", norms" : ", no norms")
               << (variant.head_dim > 0 ? ", padded" : "");
  }
};
inline constexpr Variant with_bias{true, false}, with_norm{false, true}, with_both{true, true},
    padded{false, false, 20}, padded_with_norm{false, true, 22};
inline constexpr Variant all_variants[] = {{}, with_bias, with_norm, with_both};

}  // namespace annulus::test
