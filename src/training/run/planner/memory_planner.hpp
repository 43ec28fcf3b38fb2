#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/step/update_memory.hpp>
#include <annulus/training/run/config.hpp>

#include "prediction/step/update_time.hpp"
#include "training/run/passes/sequence_plans.hpp"

namespace annulus::training {

/// Sequences that are read ahead: an optimizer step's where their plans are made with them.
std::int64_t prefetched_sequences(const ResolvedAttention& attention, const prediction::Setting& step);

/// Bytes of the host for the sequences that a rank has read: what the loader may have read ahead, and what an
/// optimizer step and a pass hold; an id and a target a row.
std::int64_t sequence_bytes(const prediction::Setting& step, std::int64_t rows, std::int64_t prefetch);

/// Values of memory.* that were tried.
struct MemoryChoices {
  struct Choice {
    Config::Memory memory;
    prediction::UpdateTime time;
    std::int64_t missing = 0;  ///< bytes, of the rank that lacks most; 0 or less: it fits
  };
  std::vector<Choice> all;
  /// The one that takes least time among those that fit, the first of nearly equal ones; where none fits the
  /// one that lacks least.
  std::size_t taken = 0;
  const Choice& chosen() const { return all[taken]; }
  bool fits() const { return chosen().missing <= 0; }
  /// Why: its time, the faster ones that do not fit, and the next one that does.
  std::string reason() const;
};

/// Memory and time of an optimizer step of a run, for any values of memory.*. Ranks need not be there.
class MemoryPlanner {
 public:
  /// `config` knows its vocabulary; memory.recompute may be auto.
  MemoryPlanner(Config config, const Topology& world, ResolvedAttention attention, bool on_gpu);

  const Config::Memory& configured() const { return config_.memory; }
  bool on_gpu() const { return on_gpu_; }
  const SequencePlans& plans() const { return plans_; }
  /// Whether sequence-selective recompute is possible: ranks have equally many early rows in every batch, and
  /// earlier positions do without later ones.
  bool recomputes_by_position() const;
  /// Ranks that share a sequence.
  int context() const { return plans_.problem().ranks(); }

  prediction::Setting setting(const Config::Memory& memory) const {
    return resolve_step(with(memory), world_, on_gpu_);
  }
  /// The share of rank `rank` of a context-parallel group.
  prediction::UpdateMemory memory(const Config::Memory& memory, int rank);
  /// Time of the slowest rank.
  prediction::UpdateTime time(const Config::Memory& memory, const simulator::Cluster& cluster);

  /// What is worth trying where `memory` leaves a choice, the simplest first: values that differ from their
  /// defaults stay. Offload is for GPUs.
  std::vector<Config::Memory> choices(const Config::Memory& memory) const;
  /// Bytes that are missing for each of several values of memory.*, on the rank that lacks most; 0 or less:
  /// it fits.
  using Missing = std::function<std::vector<std::int64_t>(const std::vector<Config::Memory>&)>;
  /// Tries the choices of `open`, and those that fit with recompute with as many layers without it as fit as
  /// well.
  MemoryChoices choose(const Config::Memory& open, const simulator::Cluster& cluster,
                       const Missing& missing_of);

 private:
  Config with(const Config::Memory& memory) const;
  prediction::RankShare share(const prediction::Setting& step, int rank);
  /// Plans of each mask of layers.
  using MaskPlans = std::vector<executor::Plans>;  ///< of each mask, for sequences that are alike
  /// What attention holds on a rank.
  struct AttentionBytes {
    std::int64_t exchange = 0, staging = 0, tables = 0;  ///< as in prediction::RankShare
  };
  AttentionBytes attention_bytes(const prediction::Setting& step, const MaskPlans& plans,
                                 const std::vector<std::vector<executor::Plans>>& largest, int rank) const;
  const MaskPlans& plans_for(std::int64_t early_positions);
  std::vector<Config::Memory> with_less_recompute(const std::vector<Config::Memory>& choices,
                                                  const std::vector<std::int64_t>& missing,
                                                  const Missing& missing_of) const;

  Config config_;
  Topology world_;
  SequencePlans plans_;
  std::optional<SequencePlans> typical_;     // of documents as the data have them, where they decide on time
  std::optional<SequencePlans> validation_;  // where it has plans of its own
  bool on_gpu_;
  std::map<std::int64_t, MaskPlans> made_;                                 // by early positions
  std::map<std::pair<std::int64_t, int>, AttentionBytes> training_bytes_;  // by early positions and rank
  std::map<int, AttentionBytes> validation_bytes_;                         // by rank
  // Of each mask of layers, by early positions; of one cluster.
  std::map<std::int64_t, std::deque<prediction::LayerAttention>> attention_;
};

/// "selective, chunks of 4096 rows, activations offloaded": for tables.
std::string outline(const Config::Memory& memory);

}  // namespace annulus::training
