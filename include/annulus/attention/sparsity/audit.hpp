#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/attention/sparsity/attention.hpp>

namespace annulus::sparsity {

/// What an audit found of a query head. P is the softmax over all pairs that the mask allows, dS = P∘(dP − D)
/// with dP = dO·Vᵀ and D = Σ P·dP is the gradient of the scores under it. Sums are over the audited queries.
struct HeadAudit {
  double density = 1;   ///< pairs that the head selected / pairs that the mask allows, of all queries
  double queries = 0;   ///< audited ones that have keys
  double recall = 0;    ///< sum of the probability that the selected keys hold
  double entropy = 0;   ///< sum of −Σ P ln P, nats; a sink counts as a key
  double gradient = 0;  ///< sum of |dS|
  double selected_gradient = 0;  ///< sum of |dS| over the selected pairs

  /// Calls visit with a reference to each number.
  template <class Visit>
  void visit(const Visit& visit) {
    visit(density), visit(queries), visit(recall), visit(entropy), visit(gradient), visit(selected_gradient);
  }
};

/// What an audit found of a layer.
struct LayerAudit {
  int layer = 0;
  bool selects = false;  ///< else all pairs: density, recall and its like for the gradient are 1
  std::vector<HeadAudit> heads;
  int pictured_head = 0;
  std::int64_t block = 0;  ///< positions of a row or column of the pictures
  std::vector<double>
      weights;  ///< (blocks, blocks): sums of P of the pictured head by blocks of queries and keys
  std::vector<double> gradients;  ///< (blocks, blocks): sums of |dS| of the pictured head
};

/// Looks at attention in a backward pass: at density, recall, entropy and gradients of all heads, for some of
/// the queries of one sequence. Queries travel to all ranks, and each computes their scores with its own
/// keys, so that the cost of a layer is that of `queries` · tokens pairs whatever the layout and the number
/// of ranks. docs/sparsity.md tells what the numbers mean.
template <class Exec, class T>
class AttentionAudit {
 public:
  /// A sequence as it lies on the ranks.
  struct Sequence {
    Layout layout;                   ///< of which `rows` are a shard
    PositionMap rows;                ///< of this rank
    std::vector<Mask> masks;         ///< that layers have
    std::vector<int> mask_of_layer;  ///< which of them each layer has
  };
  struct Options {
    std::int64_t queries = 0;  ///< of the sequence: one of each of so many parts of equal length; 0: all
    std::int64_t number = 0;   ///< which queries of their parts these are
  };
  /// `communicator` outlives this. All ranks give the same but for `rows`.
  AttentionAudit(const Exec& exec, comm::Communicator& communicator, Sequence sequence,
                 const Options& options);
  ~AttentionAudit();
  AttentionAudit(const AttentionAudit&) = delete;
  AttentionAudit& operator=(const AttentionAudit&) = delete;

  /// `arrays`: as the layer's backward pass gets them. Gradients are not read, and nothing is written; of a
  /// batch the first sequence is looked at. `selection`: what the layer selected, or null where it takes all
  /// pairs. Collective. Waits for the work.
  using Arrays = typename executor::Attention<Exec, T>::Backward;
  void look_at(const Exec& exec, int layer, const Arrays& arrays, const Selection<Exec>* selection);

  /// The layers that have been looked at since the last call, by number, the same on all ranks.
  std::vector<LayerAudit> take();

  /// Blocks along a side of a picture, at most.
  static constexpr std::int64_t most_blocks = 32;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace annulus::sparsity
