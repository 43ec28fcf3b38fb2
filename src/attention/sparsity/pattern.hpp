#pragma once

#include <memory>
#include <span>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/documents.hpp"
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
  /// The documents of the sequences; null: each sequence is one document. The same object as long as the
  /// documents are the same.
  std::shared_ptr<const Documents<Exec>> documents = nullptr;

  bool packed() const { return documents != nullptr && documents->packed(); }
  DocumentSpans spans() const {
    return documents != nullptr ? documents->spans() : DocumentSpans{.tokens = tokens};
  }
  /// The inputs of sequences `first` … first + count − 1 alone.
  PatternInputs some_sequences(int first, int count) const {
    const auto some = [&](const Array4<const T, Exec>& all) {
      const std::size_t of_sequence = all.extent(1) * all.extent(2) * all.extent(3);
      return Array4<const T, Exec>(all.data() + static_cast<std::size_t>(first) * of_sequence, count,
                                   all.extent(1), all.extent(2), all.extent(3));
    };
    PatternInputs inputs = *this;
    inputs.q = some(q);
    inputs.k = some(k);
    return inputs;
  }
  /// A selection without blocks and columns yet.
  Selection<Exec> selection(int lists, PatternRows rows, std::int64_t block = block_tokens) const {
    return {.tokens = tokens,
            .documents = documents,
            .batch = q.extent_int(0),
            .heads = q.extent_int(1),
            .lists = lists,
            .block = block,
            .pattern_rows = rows};
  }
};

/// Brings the bits of all rows to all ranks: those of a row are set by the rank that has selected for it, and
/// clear elsewhere. Collective.
template <class Exec>
void share_bits(const Exec& exec, comm::Communicator& communicator, const Selection<Exec>& made) {
  const Array3<std::uint32_t, Exec>& bits = made.blocks.view();
  communicator.all_reduce(Queue(exec), bits.data(), bits.size(), DType::i32, comm::ReduceOp::sum);
}

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
