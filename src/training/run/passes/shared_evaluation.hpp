#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <annulus/attention/comm/communicator.hpp>

#include "training/run/passes/evaluator.hpp"

namespace annulus::training {

/// Sequences that all ranks of a job evaluate together, each group of them others.
struct SharedEvaluation {
  comm::Communicator& world;
  const comm::Communicator& context;  ///< this rank's context-parallel group in `world`
  Evaluator& evaluator;
  std::int64_t sequences = 0;
  /// Reads rows of a sequence, from 0 on.
  std::function<data::Sequence(std::int64_t index, const PositionMap& rows)> read;
  /// Is called, in order, with this rank's rows of each sequence of its group: losses (rows), and, where
  /// asks_greedy, whether targets are greedy choices (rows).
  std::function<void(std::int64_t index, const data::Sequence& sequence, std::span<const double> losses,
                     std::span<const std::uint8_t> greedy)>
      use;
  /// Between passes the ranks ask it: where any has to stop, all do.
  std::function<bool()> stopped;
  bool asks_greedy = false;
};

/// Evaluates them; false where a rank has stopped that. Collective.
bool evaluate_together(const SharedEvaluation& shared);

}  // namespace annulus::training
