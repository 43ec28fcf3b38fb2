#pragma once

#include <cstdint>
#include <span>

#include "training/data/dataset.hpp"

namespace annulus::training {

/// Measures the loss of sequences with weights that stay as they are, whoever holds them. Collective over the
/// ranks of a context-parallel group.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  /// Sequences of a pass.
  virtual int sequences() const = 0;
  /// This rank's rows of sequences.
  virtual data::RankRows rows() const = 0;
  /// Cross-entropies of this rank's rows of these sequences, (sequences · rows), in nats; 0 where the target
  /// is ignored. `greedy`, as long or empty, gets 1 where the target is the greedy choice, else 0
  /// (Model::evaluate).
  virtual void evaluate(std::span<const data::Sequence> sequences, std::span<double> losses,
                        std::span<std::uint8_t> greedy = {}) = 0;
};

}  // namespace annulus::training
