#include <annulus/training/model/activation_memory.hpp>

#include <algorithm>

#include "training/linalg/matmul.hpp"
#include "training/loss/lm_head.hpp"
#include "training/model/activation_layout.hpp"
#include "training/model/lm_head_options.hpp"
#include "training/model/ops/token_upload.hpp"

namespace annulus::model {

namespace {

/// Forward, gradient of the input, gradient of the weight.
void add_products(std::vector<linalg::ProductSize>& to, const WeightMatrix& weight, std::int64_t rows,
                  bool fp32_result) {
  to.push_back({rows, weight.out, weight.in, fp32_result});
  to.push_back({rows, weight.in, weight.out});
  to.push_back({weight.out, weight.in, rows, true});
}

}  // namespace

ActivationMemory activation_memory(const Config& config, const PassRows& rows, DType type,
                                   const ActivationOptions& options, bool on_host) {
  const Shapes shapes(config, {rows.sequences, rows.tokens}, rows.early, options,
                      static_cast<int>(size_of(type)), on_host);
  const ActivationLayout layout = activation_layout(shapes, options);
  return {.kept = layout.own(),
          .kept_by_layer = layout.kept,
          .working = layout.device() - layout.own(),
          .rotary = rotary_bytes(config, rows.tokens),
          .host = layout.host};
}

OtherMemory other_memory(const Config& config, const PassRows& rows, DType type,
                         const ActivationOptions& options, std::int64_t passes, bool on_host) {
  const std::int64_t all = rows.sequences * rows.tokens,
                     chunk = options.chunk_rows > 0 ? std::min(options.chunk_rows, all) : all;
  const loss::LmHeadWorkspace head =
      loss::lm_head_workspace(all, config.vocabulary, on_host, lm_head_options(options.lm_head_rows));
  std::vector<linalg::ProductSize> products;
  for (const WeightMatrix& weight : layer_matrices(config)) add_products(products, weight, chunk, false);
  add_products(products, {config.vocabulary, config.hidden}, head.tile, true);
  using Upload = TokenUpload<HostExec>;
  const std::int64_t ids =
      all * static_cast<std::int64_t>(Upload::lists) * static_cast<std::int64_t>(sizeof(std::int32_t));
  return {.workspace = head.bytes_beside_logits() + linalg::kept_memory(products, type, on_host),
          .token_ids = ids,
          .staging = ids * std::min(passes, static_cast<std::int64_t>(Upload::most_passes))};
}

}  // namespace annulus::model
