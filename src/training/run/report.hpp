#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/sparsity/attention.hpp>
#include <annulus/attention/sparsity/audit.hpp>
#include <annulus/training/run/config.hpp>
#include <annulus/training/run/trainer.hpp>

#include "training/run/stragglers.hpp"

namespace annulus::training {

/// Shares of the parts of a step (StepResult::part_seconds), the largest first.
std::string parts_text(const std::vector<double>& seconds);

/// What an optimizer step has read of a set of data.sets.
struct SetRead {
  std::string name;
  std::int64_t sequences = 0;
  std::int64_t targets = 0;  ///< tokens that count
  double loss = 0;           ///< their mean, nats per token
  double epochs = 0;         ///< read so far
  bool new_epoch = false;    ///< one began, or is next
};

/// Sums over the sequences of a set in an optimizer step.
struct SetLoss {
  double loss = 0;  ///< nats
  std::int64_t targets = 0;
};

/// What one optimizer step found; docs/formats/metrics.md defines each number.
struct StepResult {
  double loss = 0;           ///< nats per token
  std::int64_t tokens = 0;   ///< of this optimizer step, all data-parallel groups together
  std::int64_t targets = 0;  ///< tokens that count in the loss
  double gradient_norm = 0;  ///< before clipping
  double learning_rate = 0;
  /// What was not finite, with rank and tensor, where the step was left out for it (train.skip_non_finite).
  std::string not_finite;
  std::int64_t skipped_steps = 0;  ///< of the run up to here, this one included
  bool spike = false;              ///< see SpikeWatch
  double seconds = 0;              ///< the slowest rank's
  double exposed_communication_seconds =
      0;  ///< waiting for transfers of attention; the rank that waited longest
  double least_exposed_communication_seconds =
      0;                                ///< waiting for transfers of attention; the rank that waited least
  double exposed_sharding_seconds = 0;  ///< waiting for shards (parallel.zero); the rank that waited longest
  double planning_seconds = 0;          ///< making plans for other documents; the slowest rank's
  /// Seconds of each StepPart, the mean of the ranks; empty in steps that are not timed (train.parts_every).
  std::vector<double> part_seconds;
  /// How the sequences of the step were dealt out, with attention.layout = 'balanced'.
  struct Cut {
    double imbalance = 1;        ///< pairs of the busiest rank over the mean of its group; the worst group's
    double group_imbalance = 1;  ///< pairs of the busiest data-parallel group over the mean
    double seconds_ahead = 0;    ///< of host threads, for plans ahead of the step; the slowest rank's
    std::uint64_t fingerprint = 0;
  };
  std::optional<Cut> cut;
  /// Times that attention's forward pass was computed in a layer, by (query, key) pairs, on average.
  double forward_attention = 0;
  /// Share of the unmasked pairs that layers attended to, on average: 1 but for attention.sparsity.
  double attention_density = 1;
  /// sparsity::Balance of forward passes with attention.sparsity, the mean of layers, passes and groups.
  std::optional<sparsity::Balance> attention_imbalance;
  std::vector<sparsity::LayerAudit> audit;  ///< of the step (sparsity.audit_every), all groups together
  double attention_computation_ratio = 1;   ///< of attention's plan steps, the mean of the ranks
  ComputeTime compute;                      ///< this rank's
  Slowest slowest;                          ///< of ranks and links, on rank 0
  double flops = 0;      ///< operations of the model, all ranks together (model/config.hpp)
  PeakMemory memory;     ///< of the rank that needs most, category by category
  int stop_signal = 0;   ///< one that any rank has received, 0 if none has
  int saving = 0;        ///< 1 where any rank still writes a checkpoint
  int damaged_data = 0;  ///< 1 where any rank has found a damaged shard (DataVerification)

  std::vector<SetLoss> set_losses;  ///< of each set of data.sets; empty where there is one
  std::vector<SetRead> sets;        ///< of data.sets; empty with data.shards
  /// A sequence of the step.
  struct ReadSequence {
    std::int32_t counted = 0;  ///< 1 where a token of it counts as a target
    std::int64_t gap = 0;      ///< tokens of no document (data.packing)
  };
  std::vector<ReadSequence> sequences;  ///< of all groups, group by group

  std::vector<ValidationLoss> validation;  ///< behind the step, where one was due
  double validation_seconds = 0;           ///< which `seconds` leave out

  bool skipped() const { return !not_finite.empty(); }
  /// Sequences of which no token counts.
  std::int64_t blank_sequences() const { return std::ranges::count(sequences, 0, &ReadSequence::counted); }
  /// Tokens of no document.
  std::int64_t gap_tokens() const {
    std::int64_t tokens_of_gaps = 0;
    for (const ReadSequence& sequence : sequences) tokens_of_gaps += sequence.gap;
    return tokens_of_gaps;
  }
  double tokens_per_second() const { return seconds > 0 ? double(tokens) / seconds : 0.0; }
  /// The rate of one of `ranks` ranks.
  double tflops(int ranks) const { return seconds > 0 ? flops / seconds / ranks * 1e-12 : 0.0; }
};

/// Peaks of this process so far. What the GPU's driver alone knows is asked for step by step.
class MemoryWatch {
 public:
  /// Looks at the end of a step. Takes some 0.1 ms with a GPU.
  void observe();
  PeakMemory peaks() const;

 private:
  std::int64_t pool_ = 0, libraries_ = 0;
};

/// Replaces what each rank has seen of seconds, exposed and planning seconds, memory,
/// stop_signal, saving and damaged_data by the maximum over all ranks, in one reduction.
void take_maxima(comm::Communicator& world, StepResult& result);

/// Finds steps whose loss or gradient norm stands out: above the mean of the last hundred steps by more than
/// six standard deviations, once there are twenty.
class SpikeWatch {
 public:
  /// Whether the step stands out; a number that is not finite does, and is not remembered.
  bool observe(double loss, double gradient_norm);

 private:
  std::deque<double> losses_, norms_;
};

/// What a run sums up of its optimizer steps.
class Tally {
 public:
  void add(const StepResult& result);

  /// The mean of the steps but the first, which warms up; the first one while it is the only one.
  double seconds_per_step() const;
  double seconds_per_token() const;

  /// Losses, rates and memory, for `ranks` ranks.
  void write(Outcome& outcome, int ranks) const;

 private:
  std::deque<double> first_losses_, last_losses_;
  std::int64_t steps_ = 0, tokens_ = 0;  // tokens, seconds and operations: of steps but the first
  double seconds_ = 0, flops_ = 0;
  StepResult last_;
};

/// What the report of a run needs to know of it.
struct ReportOptions {
  int ranks;
  double peak_tflops;          ///< of one rank's device; 0: unknown
  std::int64_t started_after;  ///< optimizer steps that were made when this process started
  std::int64_t steps;          ///< optimizer steps of the run
  const prediction::UpdateMemory& predicted;
};

/// The line of metrics.jsonl.
nlohmann::json metrics_record(const StepResult& result, const ReportOptions& options, std::int64_t step,
                              std::int64_t tokens_so_far, std::int64_t epoch);

/// The line of attention.jsonl, of a step with an audit.
nlohmann::json attention_record(const StepResult& result, std::int64_t step);

/// What the log says of the learning rate when a run starts after `step` optimizer steps: that its curve
/// differs from that of `before`, the configuration of the checkpoint that it goes on from, and where it ends
/// before the run does. One line each. `now` knows its train.schedule_steps.
std::vector<std::string> learning_rate_notes(const std::optional<Config>& before, const Config& now,
                                             std::int64_t step);

/// The progress line. `mean_loss` is that of the steps since the line before.
std::string progress_line(const StepResult& result, const ReportOptions& options, std::int64_t step,
                          double mean_loss, double seconds_left);

}  // namespace annulus::training
