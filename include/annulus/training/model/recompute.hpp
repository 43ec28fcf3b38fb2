#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace annulus::model {

/// What a layer keeps from its forward pass for its backward pass; the rest is computed again there.
enum class Recompute : std::uint8_t {
  none,  ///< everything that the backward pass reads
  full,  ///< its input alone (gradient checkpointing, Chen et al. 2016): the layer is computed twice
  /// Its input, attention's output and LSE: everything but attention is computed twice (selective
  /// checkpointing++, BurstEngine, section 3.2; the rematerialization-aware checkpoints of DistFlashAttn,
  /// section 3.3).
  selective,
  /// As selective for the later positions of a sequence; attention of the earlier queries, which cost least
  /// under a causal mask, is computed twice (sequence-level selective checkpointing, BurstEngine, section
  /// 3.2).
  sequence_selective
};
std::string_view name_of(Recompute recompute);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
Recompute parse_recompute(std::string_view name, std::string_view field);

/// How the layers of a model hold their activations. None, full and selective give the same bits, with and
/// without offload; the others differ in the order of sums.
struct ActivationOptions {
  /// Policy of each layer, or one for all of them.
  std::vector<Recompute> recompute = {Recompute::none};
  /// sequence_selective computes attention of the queries before this position again.
  std::int64_t early_positions = 0;
  /// Share of the layers whose kept tensors wait in pinned memory of the host, 0 to 1; of those that
  /// may_offload().
  double offload = 0;
  /// Norms, projections and feed-forward layers work on so many rows at once; 0: on all.
  std::int64_t chunk_rows = 0;
  /// Rows whose logits exist at once, whatever memory they take; 0: as loss::LmHeadOptions chooses.
  std::int64_t lm_head_rows = 0;
  /// No backward pass follows (Model::evaluate): layers work in two blocks in turn and keep nothing.
  bool forward_only = false;

  /// Of a model that evaluates as one with these options trains.
  ActivationOptions without_backward() const {
    return {.recompute = {Recompute::full},
            .chunk_rows = chunk_rows,
            .lm_head_rows = lm_head_rows,
            .forward_only = true};
  }

  Recompute of(int layer) const {
    return recompute[recompute.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
  }
  /// A layer that keeps everything beside others that do not stays on the device: there was room for it.
  bool may_offload(int layer) const {
    return of(layer) != Recompute::none ||
           std::ranges::all_of(recompute, [](Recompute policy) { return policy == Recompute::none; });
  }
};

}  // namespace annulus::model
