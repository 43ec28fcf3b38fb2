#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>

namespace annulus::attention {

/// A block of query rows against a block of key rows, of several heads.
struct PairsOf {
  MaskRule mask;  ///< its block lists, of all `heads`, can be read from the execution space
  PositionMap q_positions;
  KeyPositions keys;
  std::int64_t heads = 1;      ///< of all sequences
  std::int64_t key_heads = 0;  ///< lists of keys.listed, one after another, which divide `heads`; 0: one list
};

/// Adds the unmasked (query, key) pairs of all heads to *count, on the execution space: what kernels compute
/// where block lists are known there alone. Takes no dilation.
template <class Exec>
void count_pairs(const Exec& exec, const PairsOf& what, std::int64_t* count);

}  // namespace annulus::attention
