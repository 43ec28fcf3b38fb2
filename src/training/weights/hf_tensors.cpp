#include "training/weights/hf_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::weights {

namespace {

using model::NormPlace;
using Names = std::span<const std::pair<std::string_view, std::string_view>>;
using Pair = std::pair<std::string_view, std::string_view>;

constexpr std::array outside{Pair{"embedding", "model.embed_tokens.weight"},
                             Pair{"final_norm", "model.norm.weight"}, Pair{"lm_head", "lm_head.weight"}};
constexpr std::array of_layer{
    Pair{"attention.query", "self_attn.q_proj.weight"}, Pair{"attention.key", "self_attn.k_proj.weight"},
    Pair{"attention.value", "self_attn.v_proj.weight"}, Pair{"attention.query_bias", "self_attn.q_proj.bias"},
    Pair{"attention.key_bias", "self_attn.k_proj.bias"},
    Pair{"attention.value_bias", "self_attn.v_proj.bias"},
    // Where Block::qk_norm says so.
    Pair{"attention.query_norm", "self_attn.q_norm.weight"},
    Pair{"attention.key_norm", "self_attn.k_norm.weight"}, Pair{"attention.out", "self_attn.o_proj.weight"},
    // Of gpt-oss.
    Pair{"attention.out_bias", "self_attn.o_proj.bias"}, Pair{"attention.sinks", "self_attn.sinks"},
    Pair{"ffn.gate", "mlp.gate_proj.weight"}, Pair{"ffn.up", "mlp.up_proj.weight"},
    Pair{"ffn.down", "mlp.down_proj.weight"}};
// Instead of those, one tensor for all that have its name.
constexpr std::array of_fused_layer{
    Pair{"attention.query", "self_attn.qkv_proj.weight"}, Pair{"attention.key", "self_attn.qkv_proj.weight"},
    Pair{"attention.value", "self_attn.qkv_proj.weight"}, Pair{"ffn.gate", "mlp.gate_up_proj.weight"},
    Pair{"ffn.up", "mlp.gate_up_proj.weight"}};
constexpr std::array norms_before{Pair{"attention_norm", "input_layernorm.weight"},
                                  Pair{"ffn_norm", "post_attention_layernorm.weight"}};
constexpr std::array norms_behind{Pair{"attention_out_norm", "post_attention_layernorm.weight"},
                                  Pair{"ffn_out_norm", "post_feedforward_layernorm.weight"}};
constexpr std::array norms_both{Pair{"attention_norm", "input_layernorm.weight"},
                                Pair{"attention_out_norm", "post_attention_layernorm.weight"},
                                Pair{"ffn_norm", "pre_feedforward_layernorm.weight"},
                                Pair{"ffn_out_norm", "post_feedforward_layernorm.weight"}};

std::string_view theirs(Names names, std::string_view ours) {
  const auto found = std::ranges::find(names, ours, &Pair::first);
  return found == names.end() ? std::string_view() : found->second;
}

std::string their_name(std::string_view ours, const Family& family) {
  if (const std::string_view name = theirs(outside, ours); !name.empty()) return std::string(name);
  constexpr std::string_view prefix = "layers.";
  const std::size_t dot = ours.starts_with(prefix) ? ours.find('.', prefix.size()) : ours.npos;
  if (dot != ours.npos) {
    const Names norms = family.block.norms == NormPlace::before   ? Names(norms_before)
                        : family.block.norms == NormPlace::behind ? Names(norms_behind)
                                                                  : Names(norms_both);
    for (const Names names : {family.fused ? Names(of_fused_layer) : Names(), Names(of_layer), norms})
      if (const std::string_view name = theirs(names, ours.substr(dot + 1)); !name.empty())
        return fmt::format("model.{}.{}", ours.substr(0, dot), name);
  }
  fail("transformers has no name for the parameter '{}'", ours);
}

}  // namespace

std::vector<HfTensor> hf_tensors(const model::ParameterMap& map, const Family& family) {
  std::vector<HfTensor> tensors;
  for (const model::Parameter& parameter : map.all()) {
    std::string name = their_name(parameter.name, family);
    if (!tensors.empty() && tensors.back().name == name)
      tensors.back().rows += parameter.rows;
    else
      tensors.push_back({std::move(name), parameter.offset, parameter.rows, parameter.columns});
  }
  return tensors;
}

}  // namespace annulus::weights
