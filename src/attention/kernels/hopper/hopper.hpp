#pragma once

#include <annulus/attention/kernels/local.hpp>
#include <concepts>

#include "attention/kernels/gpu/tile_columns.hpp"
#include "attention/kernels/gpu/views.hpp"
#include "attention/kernels/hopper/launch/head_sections.hpp"
#include "attention/kernels/hopper/schedule/dilation_classes.hpp"
#include "attention/kernels/hopper/tile/form.hpp"

/// The kernels for Hopper's tensor cores (Kernel::hopper): wgmma products, tiles by TMA, a producer and
/// consumer warpgroups (FlashAttention-3). bfloat16 and float16 on GPUs of compute capability 9.0, head_dim
/// 64 to 128 in multiples of 8 and 256, any position maps, grouped heads, numbers of rows and strides. All
/// masks, but for dilation together with blocks, dilation where rows of one dilation class are not evenly
/// spaced (schedule/dilation_classes.hpp), and blocks whose tables would be large. Blocks that each query has
/// (MaskRule::query_blocks) cost what the union over a tile of queries costs. P and dS are
/// rounded to the inputs' type before they are multiplied, as every tensor-core kernel does. Sums have a
/// fixed order unless KernelOptions frees that of dQ.
///
/// Arguments as in local.hpp, checked by the caller; no extent is 0. Rows of queries that have LSE = −inf
/// send no gradients, but their q and d_out are read and must be finite.
namespace annulus::attention::hopper {

/// What the kernel takes, for messages.
inline constexpr const char* limits =
    "bf16 and f16, head_dim 64 to 128 in multiples of 8 and 256, a positive scale, rows that start at "
    "multiples of 16 bytes, "
    "dilation without blocks and in layouts where keys of one dilation class are evenly spaced, listed keys "
    "with a block list for each head or kv head, block lists of up to some 700 thousand rows a rank, blocks "
    "of each query (moba, infllm-v2) of up to some 500 thousand rows (90 thousand in layouts that do not "
    "keep 32 neighbours together), "
    "soft caps of bf16 with head_dim 64, 128 and 256 without block lists, bf16 with head_dim 192 and "
    "v_head_dim 128 without soft caps and block lists, and NVIDIA GPUs of "
    "compute capability 9.0 (H100, H200)";

/// Whether this process' GPU is one of Hopper's.
bool runs_here();

/// Whether the kernel takes these operands, together with the other arrays of (rows, head_dim), on a GPU for
/// it.
template <class T, class Exec, class... Views>
bool applies(const Operands<T, Exec>& in, const Views&... others) {
  if constexpr (std::same_as<T, float>) {
    return false;
  } else {
    // Rows are counted in int; heads are y of a grid.
    constexpr std::size_t most_rows = 1u << 30, most_heads = 65535;
    constexpr std::size_t most_tiles = std::size_t{1}
                                       << 30;  // of 64 rows, of all heads: tile numbers are int, too
    const auto fits = [](const auto& view) { return gpu::aligned(view, 16); };
    const std::size_t heads = in.q.extent(0) * in.q.extent(1), head_dim = in.q.extent(3);
    const auto classes = dilation_classes(in.mask, in.q_positions, in.kv_positions);
    if (!classes || (classes->count > 1 && in.mask.has_blocks())) return false;
    const bool listed = in.kv_listed != nullptr;
    // Tables of listed keys are made from the block lists of their heads.
    const bool lists_of_heads = in.mask.lists_of_heads();
    if ((listed || in.mask.query_blocks != nullptr) && !lists_of_heads) return false;
    // A list does not go beyond the heads of a kv head.
    const auto group = static_cast<std::int64_t>(in.q.extent(1) / in.k.extent(1));
    if (lists_of_heads && group % in.mask.heads_of_list != 0) return false;
    if (lists_at_once(in.mask, in.q_positions, in.kv_positions, listed) < 1) return false;
    const auto tiles = [&](std::size_t rows) {
      return heads * classes->count * (rows / classes->count / 64 + 1);
    };
    const bool takes_cap =
        std::same_as<T, bfloat16> && has_capped_tiles(head_dim) && !in.mask.has_blocks() && !listed;
    if (in.soft_cap > 0.0f && !takes_cap) return false;
    const std::size_t v_head_dim = in.v.extent(3);
    const bool two_widths = std::same_as<T, bfloat16> && has_tiles_of_two_widths(head_dim, v_head_dim) &&
                            !in.mask.has_blocks() && !listed;
    return (two_widths || (v_head_dim == head_dim && (gpu::has_tiles(head_dim) || head_dim == 256))) &&
           in.scale > 0.0f && in.q.extent(2) <= most_rows && in.k.extent(2) <= most_rows &&
           heads <= most_heads && tiles(in.q.extent(2)) <= most_tiles &&
           tiles(in.k.extent(2)) <= most_tiles && fits(in.q) && fits(in.k) && fits(in.v) &&
           (fits(others) && ...);
  }
}

/// Whether the kernel itself takes ForwardArrays::sinks of these operands.
template <class T, class Exec>
bool joins_sinks(const Operands<T, Exec>& in) {
  return std::same_as<T, bfloat16> && has_sink_tiles(in.q.extent(3)) && in.soft_cap == 0.0f &&
         !in.mask.has_blocks() && in.kv_listed == nullptr;
}

/// Rows of ForwardArrays::finished start at multiples of 4 bytes; sinks are none where not joins_sinks().
template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const ForwardArrays<T, Exec>& arrays,
             const KernelOptions& options);

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays,
              const KernelOptions& options);

}  // namespace annulus::attention::hopper
