#pragma once

#include <cstddef>
#include <cstdint>

#include <annulus/attention/sparsity/options.hpp>

namespace annulus::sparsity {

/// The attention that selections are made for, of one rank.
struct SelectionShape {
  std::int64_t tokens = 0, rows = 0;  ///< of a sequence, of all ranks and of this one
  int batch = 1, heads = 1, kv_heads = 1, head_dim = 64;
  std::size_t element = 4;  ///< bytes of q, k and v
};

/// Bytes that sparse attention takes on a rank besides that of executor::Attention.
struct SelectionMemory {
  std::int64_t kept = 0;           ///< of a layer, from its forward to its backward pass (activations)
  std::int64_t workspace = 0;      ///< the most at once: masses and scores of the window, or block lists
  std::int64_t communication = 0;  ///< the most at once: K, V, dK and dV of the columns
};

/// The share of the keys, and of the block distances, that a selection by recall is taken to choose where its
/// memory is predicted: what it does choose shows only while a run goes on.
inline constexpr double predicted_share = 0.1;

/// With fixed numbers exactly, but for a few bytes a head; with a recall by predicted_share.
SelectionMemory selection_memory(const PatternOptions& options, const SelectionShape& shape);

/// The share of the causal pairs of `tokens` tokens that is selected, as exact as selection_memory, where
/// slashes are the nearest ones and no column lies in them.
double predicted_density(const PatternOptions& options, std::int64_t tokens);

}  // namespace annulus::sparsity
