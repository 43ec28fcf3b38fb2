#include "training/weights/families.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <annulus/base/error.hpp>

#include "attention/sequence/mask_terms.hpp"

namespace annulus::weights {

namespace {

using model::NormPlace, model::QkNorm;

constexpr std::array attention_bias{"attention_bias"};
constexpr std::array any_bias{"attention_bias", "mlp_bias"}, dropouts{"resid_pdrop", "embd_pdrop"};

/// A family with what all Gemmas are.
constexpr Family of_gemma(Family family) {
  family.block.norms = NormPlace::both;
  family.block.gains_from_one = true;
  family.block.activation = model::Activation::gelu_tanh;
  family.block.scaled_embedding = true;
  family.heads = 8;
  family.kv_heads = 4;
  family.head_dim = 256;
  family.rule = WindowRule::but_each_nth;
  family.sliding_window = 4096;
  family.tied = true;
  family.query_scale = true;
  family.soft_caps = true;
  family.off = attention_bias;
  return family;
}

constexpr std::array all_families{
    Family{.name = "llama", .architecture = "LlamaForCausalLM", .off = any_bias},
    Family{.name = "mistral",
           .architecture = "MistralForCausalLM",
           .kv_heads = 8,
           .rule = WindowRule::alike,
           .sliding_window = 4096},
    Family{.name = "ministral",
           .architecture = "MinistralForCausalLM",
           .kv_heads = 8,
           .rule = WindowRule::all,
           .sliding_window = 4096},
    Family{.name = "qwen2",
           .architecture = "Qwen2ForCausalLM",
           .block = {.qkv_bias = true},
           .kv_heads = 32,
           .rule = WindowRule::switched,
           .sliding_window = 4096},
    Family{.name = "qwen3",
           .architecture = "Qwen3ForCausalLM",
           .block = {.qk_norm = QkNorm::head},
           .kv_heads = 32,
           .head_dim = 128,
           .rule = WindowRule::switched,
           .sliding_window = 4096,
           .off = attention_bias},
    Family{.name = "olmo2",
           .architecture = "Olmo2ForCausalLM",
           .block = {.norms = NormPlace::behind, .qk_norm = QkNorm::heads},
           .norm_epsilon = 1e-5,
           .off = attention_bias},
    Family{.name = "olmo3",
           .architecture = "Olmo3ForCausalLM",
           .block = {.norms = NormPlace::behind, .qk_norm = QkNorm::heads},
           .rule = WindowRule::but_each_nth,
           .sliding_window = 4096,
           .period = 4,
           .window_rope = WindowRope::unscaled,
           .rope_theta = 500000,
           .norm_epsilon = 1e-5,
           .off = attention_bias},
    Family{.name = "smollm3",
           .architecture = "SmolLM3ForCausalLM",
           .kv_heads = 4,
           .rule = WindowRule::without_rope,
           .may_lack_rope = true,
           .rope_theta = 2000000,
           .tied = true,
           .off = any_bias},
    of_gemma({.name = "gemma3_text",
              .architecture = "Gemma3ForCausalLM",
              .block = {.qk_norm = QkNorm::head},
              .period = 6,
              .period_key = "sliding_window_pattern",
              .window_rope = WindowRope::local,
              .rope_theta = 1000000,
              .vocabulary = 262208,
              .positions = 131072}),
    of_gemma({.name = "gemma2",
              .architecture = "Gemma2ForCausalLM",
              .period = 2,
              .soft_cap = 50,
              .logit_cap = 30,
              .vocabulary = 256000,
              .positions = 8192}),
    Family{.name = "phi3",
           .architecture = "Phi3ForCausalLM",
           .rule = WindowRule::alike,
           .scales_rope = false,
           .partial_rope = true,
           .norm_epsilon = 1e-5,
           .fused = true,
           .off = dropouts}};

/// Why the layers of a model are not those of a family; nothing where they are.
std::string_view unlike(const Family& family, const HfConfig& config, const Windows& windows) {
  const model::Config& shape = config.shape;
  const bool any = std::ranges::any_of(windows, [](std::int64_t window) { return window != 0; }),
             mixed = std::ranges::adjacent_find(windows, std::not_equal_to()) != windows.end();
  if (any && family.rule == WindowRule::none) return "windows";
  if (mixed && !family.mixes_layers()) return "layers with and without a window";
  if (!any && family.name == "mistral") return "layers without a window";
  if (shape.query_scale != 0 && shape.query_scale != static_cast<float>(shape.head_dim) &&
      !family.query_scale)
    return "a scale of queries (model.query_scale)";
  if ((shape.soft_cap != 0 || shape.logit_cap != 0) && !family.soft_caps)
    return "soft caps (model.soft_cap, model.logit_cap)";
  if (!family.scales_rope && shape.rope.scale() != model::RopeScale::none) return "scaled rotary positions";
  if (!family.partial_rope && shape.rope_fraction != 1)
    return "rotary positions of a part of a head (model.rope_fraction)";
  const std::vector<model::LayerKind> kinds = shape.kinds();
  std::optional<float> local;  // base of the layers with a window
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const model::LayerKind& kind = kinds[i];
    if (kind.sinks) return "sinks";
    if (shape.score_scale(kind) != shape.score_scale()) return "layers with a scale of queries of their own";
    if (shape.score_cap(kind) != shape.score_cap()) return "layers with a soft cap of their own";
    const float theta = kind.rope_theta > 0 ? kind.rope_theta : shape.rope_theta;
    if (!kind.rotated) {
      if (!family.may_lack_rope) return "layers without rotary positions";
      continue;
    }
    const bool own = windows[i] != 0 && family.window_rope != WindowRope::same;
    if (own && family.window_rope == WindowRope::local &&
        std::exchange(local, theta).value_or(theta) != theta)
      return "windows with several bases of rotary positions";
    const model::RopeFrequencies wanted =
        own ? model::rope_frequencies(family.window_rope == WindowRope::local ? theta : shape.rope_theta,
                                      shape.turned_elements(), {})
            : shape.frequencies();
    if (shape.frequencies(kind) != wanted) return "rotary positions of these kinds";
  }
  return {};
}

std::string block_text(const model::Block& block) {
  return fmt::format(
      "model.norms = '{}', model.gains_from_one = {}, model.qkv_bias = {}, model.out_bias = {}, "
      "model.qk_norm = '{}', model.activation = '{}' and model.scaled_embedding = {}",
      name_of_choice(block.norms), block.gains_from_one, block.qkv_bias, block.out_bias,
      name_of_choice(block.qk_norm), name_of_choice(block.activation), block.scaled_embedding);
}

}  // namespace

std::span<const Family> families() {
  return all_families;
}

const Family* find_family(std::string_view name) {
  const auto found = std::ranges::find(all_families, name, &Family::name);
  return found == all_families.end() ? nullptr : &*found;
}

Windows windows_of(const HfConfig& config) {
  Windows windows;
  std::int64_t window = 0;
  for (const model::LayerKind& kind : config.shape.kinds()) {
    const auto term =
        kind.mask.empty() ? std::nullopt : detail::parse_mask_terms(kind.mask, "model.pattern").window;
    windows.push_back(term ? term->left + 1 : kind.mask.empty() ? config.sliding_window : 0);
    if (windows.back() == 0) continue;
    require(window == 0 || window == windows.back(),
            "model.pattern = '{}' has several windows, but config.json has one sliding_window",
            fmt::join(config.shape.pattern, ", "));
    window = windows.back();
  }
  return windows;
}

const Family& family_of(const HfConfig& config) {
  const Windows windows = windows_of(config);
  const auto fits = [&](const Family& family) {
    return family.block == config.shape.block && unlike(family, config, windows).empty();
  };
  if (const Family* named = find_family(config.family); named != nullptr && fits(*named)) return *named;
  if (const auto found = std::ranges::find_if(all_families, fits); found != all_families.end()) return *found;
  std::string why;
  for (const Family& family : all_families)
    if (family.block == config.shape.block)
      why += fmt::format("{}{} has not: {}", why.empty() ? "" : "; ", family.name,
                         unlike(family, config, windows));
  require(!why.empty(), "transformers has no type of model with {}: it cannot be written",
          block_text(config.shape.block));
  fail("no type of model that is written here has the layers of this one (model.pattern = '{}'): {}",
       fmt::join(config.shape.pattern, ", "), why);
}

}  // namespace annulus::weights
