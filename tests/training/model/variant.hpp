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
  float soft_cap = 0, logit_cap = 0;
  const char* pattern = nullptr;  ///< null: layers of one kind

  void set(model::Config& config) const {
    config.block = block;
    config.query_scale = query_scale;
    config.soft_cap = soft_cap;
    config.logit_cap = logit_cap;
    if (pattern != nullptr) config.pattern = {pattern};
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
                  24},
    capped{"Gemma 2",
           {.norms = model::NormPlace::both,
            .gains_from_one = true,
            .activation = model::Activation::gelu_tanh,
            .scaled_embedding = true},
           0,
           24,
           1.5f,
           2.0f},
    capped_wide{"Gemma 2, heads of 256", capped.block, 256, 224, 1.5f, 2.0f},
    with_sinks{"gpt-oss", {.qkv_bias = true, .out_bias = true}, 0, 0, 0, 0, "window:5,0 sinks, causal sinks"},
    sinks_behind{"OLMo, sinks in some layers",
                 {.norms = model::NormPlace::behind, .qk_norm = model::QkNorm::heads, .out_bias = true},
                 22,
                 0,
                 1.5f,
                 0,
                 "causal, causal sinks"};

}  // namespace annulus::test
