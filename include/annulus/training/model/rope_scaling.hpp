#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::model {

/// How the frequencies of rotary positions are changed for sequences longer than those that a model was
/// trained on.
enum class RopeScale : std::uint8_t {
  none,
  linear,  ///< all divided by the factor (position interpolation, Chen et al. 2023)
  llama3,  ///< long wavelengths divided by the factor, short ones kept, smooth in between (Llama 3.1)
  yarn     ///< the same by a ramp over dimensions, and attention made sharper (Peng et al. 2023)
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

  RopeScale scale() const { return parse_rope_scale(name, "model.rope_scaling"); }

  /// Throws Error naming the field (as "model.rope_<field>") when the numbers make no sense, or have no
  /// effect.
  void check() const;

  bool operator==(const RopeScaling&) const = default;
};

/// What rotary positions are made of: element i of the first half of a head is turned by position ·
/// inverse[i], and cos and sin are multiplied by `attention_factor`.
struct RopeFrequencies {
  std::vector<float> inverse;  // (head_dim / 2)
  double attention_factor = 1;
};

/// The frequencies of a head of `head_dim` elements. They are floats, each operation rounded as transformers
/// (modeling_rope_utils, versions 4 and 5) rounds it, because models are trained with those: no element
/// differs by more than one unit in the last place.
RopeFrequencies rope_frequencies(double theta, int head_dim, const RopeScaling& scaling);

}  // namespace annulus::model
