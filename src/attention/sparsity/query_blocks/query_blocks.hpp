#pragma once

#include <cstdint>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

/// The second form of selection: blocks of keys for each query and query head (docs/decisions/0008). What
/// selects is here; kernels that compute it are not there yet.
namespace annulus::sparsity {

/// Blocks of the queries of one rank, in memory of the execution space.
template <class Exec>
struct QueryBlocks {
  std::int64_t tokens = 0;  ///< of the sequence
  std::int64_t block = 0;   ///< tokens
  /// (batch, heads, rows, top): block numbers, increasing, the own block the last one, filled up with
  /// blocks().
  Owned<Array4<std::int32_t, Exec>> chosen;

  std::int64_t blocks() const { return (tokens + block - 1) / block; }
};

/// The mean of the keys of each block, (batch, kv_heads, blocks, head_dim), the same bits on all ranks and
/// for every layout: keys are summed as whole numbers, in units of 2⁻⁶¹ · (a power of two above the block's
/// tokens) · (one above its largest magnitude), and the mean is rounded once to fp32. NaN where a key of a
/// block is not finite. k (batch, kv_heads, rows, head_dim) at `positions`. Collective.
template <class Exec, class T>
Owned<Array4<float, Exec>> pooled_keys(const Exec& exec, comm::Communicator& communicator,
                                       const Array4<const T, Exec>& k, const PositionMap& positions,
                                       std::int64_t tokens, std::int64_t block);

/// For each query q (batch, heads, rows, head_dim) at `positions` its own block and, of those before it, the
/// `top` − 1 whose pooled key has the largest product with it, or all where there are fewer (MoBA, Lu et al.,
/// arXiv 2502.13189, equations 3 to 6). Products are summed in fp32 channel by channel; of equal ones the
/// lower position is taken, and a NaN counts as the smallest.
template <class Exec, class T>
QueryBlocks<Exec> top_blocks(const Exec& exec, const Array4<const T, Exec>& q, const PositionMap& positions,
                             const Array4<float, Exec>& pooled, std::int64_t tokens, std::int64_t block,
                             std::int64_t top);

}  // namespace annulus::sparsity
