#pragma once

#include <memory>
#include <span>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/selection.hpp"

namespace annulus::sparsity {

/// What a rank shows a pattern of one layer.
template <class Exec, class T>
struct PatternInputs {
  Array4<const T, Exec> q;  ///< (batch, heads, rows, head_dim)
  Array4<const T, Exec> k;  ///< (batch, kv_heads, rows, head_dim)
  PositionMap positions;    ///< of the rows
  std::int64_t tokens = 0;  ///< of the whole sequence
  float scale = 1.0f;       ///< of the scores
  /// The rows of every rank of the communicator, `positions` among them.
  std::span<const PositionMap> of_ranks = {};
};

/// How pairs are chosen: scores in, blocks and columns out. Everything else (lists, columns' keys, passes,
/// counts) is the same for all patterns.
template <class Exec, class T>
class Pattern {
 public:
  virtual ~Pattern() = default;
  /// Collective. The same selection, bit for bit, on every rank, for every layout and number of ranks.
  virtual Selection<Exec> select(const Exec& exec, comm::Communicator& communicator,
                                 const PatternInputs<Exec, T>& inputs) = 0;
};

}  // namespace annulus::sparsity
