#pragma once

#include <cstdint>
#include <vector>

#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// Sequences that each optimizer step of a run reads: as many in all, or fewer at first (train.ramp_*). A
/// function of the step alone, whatever ranks read them.
class BatchSchedule {
 public:
  /// `groups` data-parallel groups. Throws Error naming the keys where they do not divide the batches.
  BatchSchedule(const Config::Train& train, std::int64_t groups);

  /// Sequences of optimizer step `step`, from 0, and of all steps before it.
  std::int64_t of_step(std::int64_t step) const;
  std::int64_t before(std::int64_t step) const;
  /// Optimizer steps that read at least `sequences`.
  std::int64_t steps_for(std::int64_t sequences) const;
  /// Sequences of an optimizer step behind the ramp.
  std::int64_t full() const { return levels_.back().batch; }

 private:
  /// Steps of one size.
  struct Level {
    std::int64_t first_step, before, batch;
  };
  const Level& level_of(std::int64_t step) const;

  std::vector<Level> levels_;
};

/// What train.steps, train.tokens or train.epochs come to on data of `sequences` sequences of
/// data.sequence_length. Throws Error naming the key where that is more than a run may have.
std::int64_t total_steps(const Config& config, const BatchSchedule& batches, std::int64_t sequences);

}  // namespace annulus::training
