#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/gpu/tile_columns.hpp"
#include "attention/kernels/hopper/schedule/dilation_classes.hpp"
#include "attention/kernels/hopper/schedule/listed_keys.hpp"
#include "attention/kernels/hopper/tile/form.hpp"

/// Starts the kernels on a stream. Functions return what CUDA says to it.
namespace annulus::attention::hopper {

/// Whether there are tiles for rows of so many columns.
constexpr bool has_tiles(std::size_t head_dim) {
  return gpu::has_tiles(head_dim) || head_dim == 256;
}

/// Calls action(columns of the tiles for rows of `head_dim`, whether rows have fewer), both as integral
/// constants, where has_tiles().
template <class Action>
auto with_tile_columns(int head_dim, const Action& action) {
  if (head_dim == 256) return action(std::integral_constant<int, 256>{}, std::false_type{});
  return gpu::with_tile_columns(head_dim, action);
}

/// Calls action(columns of the tiles for `in`, their form), both as integral constants, where the kernel
/// takes it (hopper::applies).
template <class T, class Action>
auto with_tiles(const gpu::Input<T>& in, const Action& action) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (in.head_dim == 192)
      return action(std::integral_constant<int, 192>{}, std::integral_constant<TileForm, TileForm::whole>{});
  }
  const auto with = [&](auto columns, auto clipped) {
    constexpr TileForm form = clipped ? TileForm::clipped : TileForm::whole;
    if constexpr (std::is_same_v<T, bfloat16> && !clipped && has_capped_tiles(columns)) {
      if (in.soft_cap > 0.0f) return action(columns, std::integral_constant<TileForm, TileForm::capped>{});
    }
    return action(columns, std::integral_constant<TileForm, form>{});
  };
  return with_tile_columns(in.head_dim, with);
}

/// with_tiles() of the forward pass, which has sinks only where hopper::joins_sinks().
template <class T, class Action>
auto with_tiles(const gpu::ForwardProblem<T>& problem, const Action& action) {
  return with_tiles(problem.in, [&](auto columns, auto form) {
    if constexpr (std::is_same_v<T, bfloat16> && form == TileForm::whole && has_sink_tiles(columns)) {
      if (problem.sinks != nullptr)
        return action(columns, std::integral_constant<TileForm, TileForm::sinks>{});
    }
    return action(columns, form);
  });
}

/// How a launch uses the GPU.
struct LaunchOptions {
  /// Multiprocessors (SMs) that are left to others, NCCL's kernels say. Results do not depend on it.
  int free_sms = 0;
  /// Backward: dQ is summed in a fixed order, so that results are the same bits each time.
  bool deterministic = true;
  /// Results that hold nothing yet: they are written instead of added to, and need no zeros before.
  bool fresh_out = false, fresh_dq = false, fresh_dkv = false;
};

/// Why a mask takes smaller tiles than others (tile/shapes.hpp).
enum class SmallTiles {
  none,
  narrow_window,   ///< forward: large tiles would be masked for the most part
  lists_of_heads,  ///< large tiles would cut across the blocks of a head's list
  shared_lists,    ///< likewise; each two heads that read the same keys have a list in common
};

template <class T>
SmallTiles small_tiles(const gpu::Input<T>& in) {
  const MaskRule& mask = in.mask;
  const int group = in.heads / in.kv_heads;
  if (!mask.has_blocks()) {
    constexpr std::int64_t narrow = 256;  // where both shapes were expected to take as long
    const bool takes = has_narrow_window_tiles(in.head_dim) && group % 4 == 0 && in.soft_cap == 0.0f;
    const bool window = mask.left < narrow && mask.right < narrow && mask.left + mask.right < narrow;
    return takes && window && mask.dilation == 1 ? SmallTiles::narrow_window : SmallTiles::none;
  }
  if (!mask.lists_of_heads() || in.kv_listed != nullptr || mask.block_size % 128 == 0)
    return SmallTiles::none;
  const auto in_pairs = [](std::int64_t heads) { return heads % 2 == 0; };
  return in_pairs(mask.heads_of_list) && in_pairs(group) ? SmallTiles::shared_lists
                                                         : SmallTiles::lists_of_heads;
}

/// Bytes of device memory that a launch needs until it is done on its stream, starting at a multiple of 256.
/// `heads`: batch × heads. `small`: small_tiles().
template <int head_dim>
std::size_t forward_workspace(const MaskRule& mask, const PositionMap& queries, const PositionMap& keys,
                              const ListedKeys& listed, const DilationClasses& classes, SmallTiles small);
template <int head_dim>
std::size_t backward_workspace(const MaskRule& mask, const PositionMap& queries, const PositionMap& keys,
                               const ListedKeys& listed, const DilationClasses& classes, int heads,
                               const LaunchOptions& options, SmallTiles small);

/// T is bfloat16 or float16, head_dim and form as with_tiles() gives them. `classes`:
/// dilation_classes() of mask and positions.
template <int head_dim, TileForm form, class T>
cudaError_t launch_forward(const gpu::ForwardProblem<T>& problem, const DilationClasses& classes,
                           const LaunchOptions& options, void* workspace, cudaStream_t stream);
template <int head_dim, TileForm form, class T>
cudaError_t launch_backward(const gpu::BackwardProblem<T>& problem, const DilationClasses& classes,
                            const LaunchOptions& options, void* workspace, cudaStream_t stream);

}  // namespace annulus::attention::hopper
