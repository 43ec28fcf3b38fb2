#pragma once

#include <ostream>

#include <annulus/training/model/config.hpp>

namespace annulus::test {

/// What a model has beyond a LLaMA: another block, heads whose rows are padded in attention.
struct Variant {
  const char* name = "LLaMA";
  model::Block block = {};
  int head_dim = 0;  ///< 0: the configuration's
  float query_scale = 0;

  void set(model::Config& config) const {
    config.block = block;
    config.query_scale = query_scale;
    if (head_dim > 0) config.head_dim = head_dim;
  }
  friend std::ostream& operator<<(std::ostream& out, const Variant& variant) { return out << variant.name; }
};
inline constexpr Variant with_bias{"biases", {.qkv_bias = true}},
    with_norm{"norms of heads", {.qk_norm = model::QkNorm::head}},
    with_both{"biases, norms of heads", {.qk_norm = model::QkNorm::head, .qkv_bias = true}},
    padded{"padded", {}, 20},
    padded_with_norm{"padded, norms of heads", {.qk_norm = model::QkNorm::head}, 22},
    behind{"OLMo", {.norms = model::NormPlace::behind, .qk_norm = model::QkNorm::heads}},
    padded_behind{"OLMo, padded", {.norms = model::NormPlace::behind, .qk_norm = model::QkNorm::heads}, 22},
    on_both_sides{"Gemma",
                  {.norms = model::NormPlace::both,
                   .gains_from_one = true,
                   .qk_norm = model::QkNorm::head,
                   .activation = model::Activation::gelu_tanh,
                   .scaled_embedding = true},
                  0,
                  24};

}  // namespace annulus::test
