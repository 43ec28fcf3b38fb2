#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/trainer.hpp>

#include "training/run/passes/evaluator.hpp"
#include "training/run/run_data.hpp"

namespace annulus::training {

/// Tokens are told apart by how many tokens of their document come before them in their sequence: fewer than
/// `first` for the first bucket, fewer than `factor` times as many for the next, and so on.
struct PositionBuckets {
  std::int64_t first = 1024, factor = 4;
};

/// The loss on data that a run does not learn from (data.validation), measured by all ranks together. The
/// mean is over tokens, so that it is the same however ranks, groups and passes share the sequences.
class Validation {
 public:
  /// Measures on at most `sequences` sequences of each set, evenly spread over it; 0: on all. `context` is
  /// this rank's context-parallel group in `world`; both outlive this.
  Validation(comm::Communicator& world, const comm::Communicator& context, std::vector<ValidationSet> sets,
             std::int64_t sequences, const PositionBuckets& buckets = {});

  /// The loss of each set. Between passes the ranks ask `stopped`: where any has to stop, nothing comes back.
  /// Collective.
  std::optional<std::vector<ValidationLoss>> run(Evaluator& evaluator,
                                                 const std::function<bool()>& stopped) const;

  const std::vector<ValidationSet>& sets() const { return sets_; }
  /// Sequences of a set that run measures.
  std::int64_t sequences_of(const ValidationSet& set) const;

 private:
  comm::Communicator& world_;
  const comm::Communicator& context_;
  std::int64_t sequences_;
  PositionBuckets buckets_;
  std::vector<ValidationSet> sets_;
};

/// "books 2.3456 (up to 1K 2.5012, 4K 2.3001), code 1.0023": for the log.
std::string text(const std::vector<ValidationLoss>& losses);

}  // namespace annulus::training
