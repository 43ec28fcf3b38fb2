#pragma once

#include <ostream>

#include <annulus/training/model/config.hpp>

namespace annulus::test {

/// What a model has beyond a LLaMA: biases of q, k and v (Qwen2.5), norms of q and k (Qwen3).
struct Variant {
  bool qkv_bias = false, qk_norm = false;

  void set(model::Config& config) const {
    config.qkv_bias = qkv_bias;
    config.qk_norm = qk_norm;
  }
  friend std::ostream& operator<<(std::ostream& out, const Variant& variant) {
    return out << (variant.qkv_bias ? "biases" : "no biases") << (variant.qk_norm ? ", norms" : ", no norms");
  }
};
inline constexpr Variant with_bias{true, false}, with_norm{false, true}, with_both{true, true};
inline constexpr Variant all_variants[] = {{}, with_bias, with_norm, with_both};

}  // namespace annulus::test
