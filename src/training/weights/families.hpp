#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <annulus/training/model/config.hpp>

#include "training/weights/hf_config.hpp"

namespace annulus::weights {

/// Which layers have a sliding window where config.json does not list their types.
enum class WindowRule : std::uint8_t {
  none,          ///< none ever has
  alike,         ///< all where there is a window, and no list can say otherwise
  all,           ///< all
  switched,      ///< with use_sliding_window those from max_window_layers on
  without_rope,  ///< with use_sliding_window those without rotary positions
  but_each_nth   ///< all but each `period`-th
};

/// Rotary positions of the layers with a window, beside those of the others.
enum class WindowRope : std::uint8_t {
  same,
  unscaled,  ///< base of the others, no scaling
  local      ///< another base (rope_local_base_freq), no scaling
};

/// A type of model of transformers': what its block is, how its tensors are laid out, and what it takes where
/// config.json says nothing.
struct Family {
  std::string_view name;          // model_type
  std::string_view architecture;  // the one that predicts tokens
  model::Block block = {};
  std::int64_t kv_heads = 0;  // 0: as many as query heads
  int head_dim = 0;           // 0: hidden_size / num_attention_heads
  WindowRule rule = WindowRule::none;
  std::int64_t sliding_window = 0;
  int period = 0;
  std::string_view period_key = {};
  WindowRope window_rope = WindowRope::same;
  bool may_lack_rope = false;  // no_rope_layers
  bool scales_rope = true;
  bool partial_rope = false;  // partial_rotary_factor
  double rope_theta = 10000, norm_epsilon = 1e-6;
  bool tied = false;
  bool query_scale = false;  // query_pre_attn_scalar
  bool soft_caps = false;    // attn_logit_softcapping, final_logit_softcapping
  double soft_cap = 0, logit_cap = 0;
  bool fused = false;                                     // q, k and v are one tensor, gate and up another
  std::int64_t vocabulary = 0, heads = 0, positions = 0;  // 0: config.json has to say it
  std::span<const char* const> off = {};                  // keys of what it may have and the engine does not

  bool mixes_layers() const { return rule > WindowRule::alike; }
};

/// All that are read and written; where several have a block, the first one that has the layers, too, is
/// what a model is written as.
std::span<const Family> families();

/// The one of this model_type; null where there is none.
const Family* find_family(std::string_view name);

/// Keys that a query of a layer sees, itself counted, of each layer; 0: all before it.
using Windows = std::vector<std::int64_t>;
/// Windows of the layers of a model. Throws Error where it has several windows.
Windows windows_of(const HfConfig& config);

/// The one that a model is written as: that of its name where it is one, else the first. Throws Error that
/// names what no type of model has.
const Family& family_of(const HfConfig& config);

}  // namespace annulus::weights
