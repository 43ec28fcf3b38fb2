#include <annulus/model/flops.hpp>

namespace annulus::model {

double dense_flops(const LlamaConfig& config, std::int64_t rows) {
  const auto q_width = double(config.q_width()), kv_width = double(config.kv_width());
  const double layer = config.hidden * (2.0 * q_width + 2.0 * kv_width + 3.0 * config.ffn);
  return 6.0 * double(rows) * (config.layers * layer + double(config.vocabulary) * config.hidden);
}

double attention_flops(const LlamaConfig& config, double pairs) {
  // Forward Q·Kᵀ and P·V, backward two for each.
  return 12.0 * pairs * config.heads * config.head_dim * config.layers;
}

}  // namespace annulus::model
