#include <annulus/model/flops.hpp>

namespace annulus::model {

std::array<WeightMatrix, 4> layer_matrices(const LlamaConfig& config) {
  const std::int64_t hidden = config.hidden, ffn = config.ffn;
  return {{{config.qkv_width(), hidden}, {hidden, config.q_width()}, {2 * ffn, hidden}, {hidden, ffn}}};
}

double dense_flops(const LlamaConfig& config, std::int64_t rows) {
  double layer = 0;
  for (const WeightMatrix& weight : layer_matrices(config)) layer += double(weight.out) * double(weight.in);
  return 6.0 * double(rows) * (config.layers * layer + double(config.vocabulary) * config.hidden);
}

double attention_flops(const LlamaConfig& config, double pairs) {
  // Forward Q·Kᵀ and P·V, backward two for each.
  return 12.0 * pairs * config.heads * config.head_dim * config.layers;
}

}  // namespace annulus::model
