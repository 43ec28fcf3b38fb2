#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace annulus::model {

/// Where the RMSNorms of attention and of the feed-forward layer stand.
enum class NormPlace : std::uint8_t {
  before,  ///< of what goes in (LLaMA)
  behind,  ///< of what comes out, before it is added to the residual stream (OLMo 2)
  both     ///< (Gemma)
};

/// RMSNorms of q and k before they are rotated.
enum class QkNorm : std::uint8_t {
  none,
  head,  ///< of every head of q and of k (Qwen3)
  heads  ///< of all heads of q together, and of all of k (OLMo 2)
};

/// What the feed-forward layer makes of its gate.
enum class Activation : std::uint8_t {
  silu,
  gelu_tanh  ///< x · Φ(x), with Φ by a hyperbolic tangent
};

/// Names of the values, in their order.
inline std::span<const std::string_view> names_of(NormPlace) {
  static constexpr std::array<std::string_view, 3> names{"before", "behind", "both"};
  return names;
}
inline std::span<const std::string_view> names_of(QkNorm) {
  static constexpr std::array<std::string_view, 3> names{"none", "head", "heads"};
  return names;
}
inline std::span<const std::string_view> names_of(Activation) {
  static constexpr std::array<std::string_view, 2> names{"silu", "gelu_tanh"};
  return names;
}
template <class Choice>
std::string_view name_of_choice(Choice choice) {
  return names_of(choice)[static_cast<std::size_t>(choice)];
}

/// What the layers of a family of models are made of. As it stands: a LLaMA's.
struct Block {
  NormPlace norms = NormPlace::before;
  bool gains_from_one = false;  ///< norms multiply by 1 + w (Gemma), else by w
  QkNorm qk_norm = QkNorm::none;
  bool qkv_bias = false;  ///< the products of q, k and v add a bias (Qwen2.5)
  Activation activation = Activation::silu;
  bool scaled_embedding = false;  ///< embeddings are multiplied by √hidden in the type of the weights (Gemma)

  bool norms_before() const { return norms != NormPlace::behind; }
  bool norms_behind() const { return norms != NormPlace::before; }

  bool operator==(const Block&) const = default;
};

}  // namespace annulus::model
