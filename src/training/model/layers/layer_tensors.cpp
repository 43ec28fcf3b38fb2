#include "training/model/layers/layer_tensors.hpp"

#include <algorithm>

#include <annulus/base/division.hpp>

#include "training/loss/lm_head.hpp"
#include "training/model/lm_head_options.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

TensorSet kept_by(const Config& config, Recompute policy) {
  using enum Tensor;
  switch (policy) {
    case Recompute::full:
      return {input};
    case Recompute::selective:
      return {input, joined, lse};
    case Recompute::sequence_selective:
      return {input, late_joined, late_lse};
    default:
      const Block& block = config.block;
      TensorSet all{input, joined, lse, middle, gate_up};
      if (block.norms_before()) all = all | TensorSet{attention_inverse_rms, ffn_inverse_rms};
      if (block.norms_behind())
        all = all | TensorSet{attention_delta, attention_delta_rms, ffn_delta, ffn_delta_rms};
      // Norms of q and k need what went into them; q, k and v follow from it without a product.
      return all | (block.qk_norm != QkNorm::none ? TensorSet{qkv} : TensorSet{q, k, v});
  }
}

std::optional<Replacement> replacement_in_backward(Recompute policy) {
  if (policy != Recompute::selective) return std::nullopt;
  return Replacement{.tensor = Tensor::q, .kept = Tensor::joined};
}

TensorSet own_in_backward(const Config& config, Recompute policy) {
  const TensorSet kept = kept_by(config, policy);
  const std::optional<Replacement> replacement = replacement_in_backward(policy);
  return replacement ? kept | TensorSet(replacement->tensor) : kept;
}

Shapes::Shapes(const Config& config, const Extent& extent, std::int64_t early,
               const ActivationOptions& options, int element, bool on_host)
    : config(config),
      extent(extent),
      early(early),
      chunk_rows(options.chunk_rows > 0 ? std::min(options.chunk_rows, extent.rows()) : extent.rows()),
      element(element),
      logit_elements(loss::lm_head_workspace(extent.rows(), config.vocabulary, on_host,
                                             lm_head_options(options.lm_head_rows))
                         .logits()) {}

std::int64_t Shapes::bytes(Tensor tensor, bool all_rows) const {
  using enum Tensor;
  constexpr std::int64_t fp32 = 4;
  const std::int64_t rows = extent.rows(), chunk = chunk_rows, some = all_rows ? rows : chunk;
  switch (tensor) {
    case input:
    case last:
    case last_normed:
    case d_last_normed:
    case d_residual:
      return element * rows * config.hidden;
    case joined:
      return element * rows * q_width();
    case q:
    case d_out:
      return element * rows * attention_width(config.heads);
    case k:
    case v:
      return element * rows * attention_width(config.kv_heads);
    case lse:
    case d:
      return fp32 * rows * config.heads;
    case late_joined:
      return element * extent.sequences * late() * q_width();
    case late_lse:
      return fp32 * extent.sequences * late() * config.heads;
    case attention_inverse_rms:
    case last_inverse_rms:
      return fp32 * rows;
    case out:
    case d_q:
      return fp32 * rows * attention_width(config.heads);
    case d_k:
    case d_v:
      return fp32 * rows * attention_width(config.kv_heads);
    case middle:
    case attention_delta:
    case ffn_delta:
      return element * some * config.hidden;
    case ffn_inverse_rms:
    case attention_delta_rms:
    case ffn_delta_rms:
      return fp32 * some;
    case gate_up:
      return element * some * 2 * config.ffn;
    case normed:
    case d_normed:
    case d_delta:
      return element * chunk * config.hidden;
    case qkv:
      return element * some * qkv_width();
    case ffn:
    case d_ffn:
      return element * chunk * config.ffn;
    case d_joined:
      return element * chunk * q_width();
    case norm_partial:
      return fp32 * norm_partial_rows(chunk) * config.hidden;
    case qkv_partial:
      return fp32 * norm_partial_rows(chunk) * qkv_width();
    case joint_sums:
      return fp32 * chunk * 4;
    case row_partial:
      return fp32 * norm_partial_rows(rows) * config.hidden;
    case logits:
      return fp32 * logit_elements;
    case count:
      break;
  }
  return 0;
}

void Shapes::for_chunks(const std::function<void(Chunk)>& action) const {
  const std::int64_t rows = extent.rows();
  std::int64_t first = 0;
  do {
    const std::int64_t size = std::min(chunk_rows, rows - first);
    action({first, size});
    first += size;
  } while (first < rows);
}

Placement placement_of_kept(const Shapes& shapes, Recompute policy) {
  Placement placement;
  const std::optional<Replacement> replacement = replacement_in_backward(policy);
  kept_by(shapes.config, policy).for_each([&](Tensor tensor) {
    std::int64_t bytes = shapes.bytes(tensor, true);
    placement.offset[static_cast<std::size_t>(tensor)] = placement.bytes;
    if (replacement &&
        replacement->kept == tensor) {  // rows of heads may be padded, those of `joined` are not
      placement.offset[static_cast<std::size_t>(replacement->tensor)] = placement.bytes;
      bytes = std::max(bytes, shapes.bytes(replacement->tensor, true));
    }
    placement.bytes += aligned(bytes);
  });
  return placement;
}

}  // namespace annulus::model
