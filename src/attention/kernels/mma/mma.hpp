#pragma once

#include <concepts>
#include <cstdint>
#include <limits>

#include "attention/kernels/gpu/tile_columns.hpp"
#include "attention/kernels/gpu/views.hpp"
#include "attention/kernels/scores.hpp"

/// The kernels on NVIDIA's tensor cores (Kernel::mma): mma.sync products of 16-bit tiles summed in fp32,
/// asynchronous copies in two stages, an online softmax in registers (FlashAttention-2). bfloat16 and float16
/// on GPUs of compute capability 8.0 and newer, head_dim 64 to 128 in multiples of 8, any mask, position
/// maps, grouped heads, numbers of rows and strides; listed keys without soft caps. P and dS are rounded to
/// the inputs' type before they are multiplied, as every tensor-core kernel does. Sums have a fixed order: no
/// atomic additions.
///
/// Arguments as in local.hpp, checked by the caller; no extent is 0. Rows of queries that have LSE = −inf
/// send no gradients, but their q and d_out are read and must be finite.
namespace annulus::attention::mma {

/// What the kernel takes, for messages.
inline constexpr const char* limits =
    "bf16 and f16, head_dim 64 to 128 in multiples of 8, a positive scale, "
    "rows that start at multiples of 16 bytes (fp32 rows: 8), listed keys without soft caps, and NVIDIA GPUs "
    "of compute capability 8.0 or newer";

/// Rows are counted in int; heads and batch are y and z of the grid.
inline constexpr std::size_t most_rows = 1u << 30, most_blocks = 65535;

/// Whether the kernels take such queries and keys, (batch, heads, rows, head_dim) of a 16-bit type.
template <class Queries, class Keys>
bool shapes_apply(const Queries& q, const Keys& k) {
  return gpu::has_tiles(q.extent(3)) && q.extent(2) <= most_rows && k.extent(2) <= most_rows &&
         q.extent(1) <= most_blocks && q.extent(0) <= most_blocks && gpu::aligned(q, 16) &&
         gpu::aligned(k, 16);
}

/// Whether the kernel takes these operands, together with the other arrays of (rows, head_dim).
template <class T, class Exec, class... Views>
bool applies(const Operands<T, Exec>& in, const Views&... others) {
  if constexpr (std::same_as<T, float>) {
    return false;
  } else {
    const auto fits = [](const auto& view) { return gpu::aligned(view, sizeof(*view.data()) == 2 ? 16 : 8); };
    return shapes_apply(in.q, in.k) && in.v.extent(3) == in.q.extent(3) && in.scale > 0.0f && fits(in.v) &&
           (in.kv_listed == nullptr || in.soft_cap == 0.0f) && (fits(others) && ...);
  }
}

/// Whether one call takes all heads where they have block lists or listed keys of their own.
template <class T, class Exec>
bool takes_lists(const Operands<T, Exec>& in) {
  return in.soft_cap == 0.0f;
}

/// Whether the queries that have a block are gathered (MaskRule::query_blocks), of all heads in one call.
/// Other operands with such blocks cost what the union over neighbouring queries costs.
template <class T, class Exec>
bool gathers(const Operands<T, Exec>& in) {
  return in.mask.query_blocks != nullptr && (in.q.extent(3) == 64 || in.q.extent(3) == 128) &&
         in.soft_cap == 0.0f && in.kv_listed == nullptr &&
         in.mask.tokens <= std::numeric_limits<std::int32_t>::max();
}

/// Whether these gathering kernels are taken before the kernel hopper, which computes the union of what 64 or
/// 128 neighbouring queries have. Gathering takes as long whatever neighbours have, and less than dense
/// attention with blocks of 512 keys; with smaller ones it is bound by the running result
/// (docs/decisions/0008).
template <class T, class Exec>
bool gathers_before_hopper(const Operands<T, Exec>& in) {
  return gathers(in) && in.mask.block_size >= 512;
}

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
             const Strided3<float, Exec>& lse);

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays);

/// Whether there are scores of such queries and keys: also of rows of more than 256 columns, which are
/// products of several rows (sparsity::XAttention).
template <class Queries, class Keys>
bool scores_apply(const Queries& q, const Keys& k) {
  if (shapes_apply(q, k)) return true;
  return q.extent(3) > 256 && q.extent(3) % 8 == 0 && q.extent(3) <= most_rows && k.extent(2) <= most_rows &&
         q.extent(0) * q.extent(1) <= most_blocks && q.extent(2) <= 64 * most_blocks && gpu::aligned(q, 16) &&
         gpu::aligned(k, 16);
}

/// Where scores_apply.
template <class Exec, class T>
void causal_scores(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& scores,
                   const Array1<float, Exec>& maxima);

}  // namespace annulus::attention::mma
