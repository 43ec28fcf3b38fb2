#pragma once

#include <cstdint>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/query_blocks/top_blocks.hpp"
#include "base/kokkos/memory/memory.hpp"

/// How blocks of keys are chosen for each query (docs/decisions/0008).
namespace annulus::sparsity {

/// The mean of the keys of each block, of those that its last token's document has: queries behind the block
/// that see any of it see these. (batch, kv_heads, blocks, head_dim), the same bits on all ranks and
/// for every layout: keys are summed as whole numbers, in units of 2⁻⁶¹ · (a power of two above the block's
/// tokens) · (one above its largest magnitude), and the mean is rounded once to fp32. NaN where a key of a
/// block is not finite. k (batch, kv_heads, rows, head_dim) at `positions`. Collective.
template <class Exec, class T>
Owned<Array4<float, Exec>> pooled_keys(const Exec& exec, comm::Communicator& communicator,
                                       const Array4<const T, Exec>& k, const PositionMap& positions,
                                       std::int64_t tokens, std::int64_t block,
                                       const DocumentSpans& spans = {});

/// Sets the bits of the blocks that the queries of rows `first` and on have, by scores (lists, blocks, rows
/// of a part) of their candidates: of equal ones the lower position is taken, and a NaN counts as the
/// smallest. `chosen`: (lists, tokens, words), where the queries of other ranks stay as they are
/// (Selection::blocks). A sequence has `lists` of them.
template <class Exec>
void choose_blocks(const Exec& exec, const Array3<float, Exec>& scores, const PositionMap& positions,
                   const TopBlocks& of, std::int64_t first, const Array3<std::uint32_t, Exec>& chosen,
                   std::int64_t lists = 1, const DocumentSpans& spans = {});

/// Chooses blocks, as choose_blocks does, for all rows by scores (batch, lists, rows, blocks).
template <class Exec>
void choose_blocks_by_scores(const Exec& exec, const Array4<const float, Exec>& scores,
                             const PositionMap& positions, const TopBlocks& of,
                             const Array3<std::uint32_t, Exec>& chosen, const DocumentSpans& spans = {});

/// Chooses blocks, as choose_blocks does, for all rows of q (batch, heads, rows, head_dim), a list for each
/// head, where the score of a block is the product of the query with its pooled key (MoBA, Lu et al., arXiv
/// 2502.13189, equations 3 to 6). Throws Error where extents do not fit.
template <class Exec, class T>
void choose_top_blocks(const Exec& exec, const Array4<const T, Exec>& q, const PositionMap& positions,
                       const Array4<float, Exec>& pooled, const TopBlocks& of,
                       const Array3<std::uint32_t, Exec>& chosen, const DocumentSpans& spans = {});

}  // namespace annulus::sparsity
