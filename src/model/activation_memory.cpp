#include <annulus/model/activation_memory.hpp>

namespace annulus::model {

std::int64_t kept_activation_bytes(const LlamaConfig& c, std::int64_t rows, DType type, Recompute recompute) {
  const auto fp32 = std::int64_t{4}, element = static_cast<std::int64_t>(size_of(type));
  const std::int64_t input = element * c.hidden, middle = input;  // middle: of the feed-forward layer
  const std::int64_t qkv = element * c.head_dim * (c.heads + 2 * c.kv_heads);
  const std::int64_t attention = fp32 * c.heads * (c.head_dim + 1);  // output and LSE
  const std::int64_t gate_up = 2 * element * c.ffn;
  const std::int64_t norms = 2 * fp32;
  const std::int64_t others = qkv + middle + gate_up + norms;
  switch (recompute) {
    case Recompute::full:  // one set of arrays serves all layers in turn
      return rows * (c.layers * input + attention + others);
    case Recompute::selective:
      return rows * (c.layers * (input + attention) + others);
    default:
      return rows * c.layers * (input + attention + others);
  }
}

}  // namespace annulus::model
