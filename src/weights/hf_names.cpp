#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/weights/hf_weights.hpp>

namespace annulus::weights {

std::string hf_name(const model::Parameter& parameter) {
  using Pair = std::pair<std::string_view, std::string_view>;
  constexpr std::array outside{Pair{"embedding", "model.embed_tokens.weight"},
                               Pair{"final_norm", "model.norm.weight"}, Pair{"lm_head", "lm_head.weight"}};
  constexpr std::array of_layer{Pair{"attention_norm", "input_layernorm.weight"},
                                Pair{"attention.query", "self_attn.q_proj.weight"},
                                Pair{"attention.key", "self_attn.k_proj.weight"},
                                Pair{"attention.value", "self_attn.v_proj.weight"},
                                Pair{"attention.query_bias", "self_attn.q_proj.bias"},
                                Pair{"attention.key_bias", "self_attn.k_proj.bias"},
                                Pair{"attention.value_bias", "self_attn.v_proj.bias"},
                                Pair{"attention.query_norm", "self_attn.q_norm.weight"},
                                Pair{"attention.key_norm", "self_attn.k_norm.weight"},
                                Pair{"attention.out", "self_attn.o_proj.weight"},
                                Pair{"ffn_norm", "post_attention_layernorm.weight"},
                                Pair{"ffn.gate", "mlp.gate_proj.weight"},
                                Pair{"ffn.up", "mlp.up_proj.weight"},
                                Pair{"ffn.down", "mlp.down_proj.weight"}};
  const std::string_view name = parameter.name;
  for (const auto& [ours, theirs] : outside)
    if (name == ours) return std::string(theirs);
  constexpr std::string_view prefix = "layers.";
  const std::size_t dot = name.starts_with(prefix) ? name.find('.', prefix.size()) : name.npos;
  if (dot != name.npos) {
    for (const auto& [ours, theirs] : of_layer)
      if (name.substr(dot + 1) == ours) return fmt::format("model.{}.{}", name.substr(0, dot), theirs);
  }
  fail("transformers has no name for the parameter '{}'", name);
}

}  // namespace annulus::weights
