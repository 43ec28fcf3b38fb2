#include "training/run/config/batch_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

namespace annulus::training {

BatchSchedule::BatchSchedule(const Config::Train& train, std::int64_t groups) {
  const std::int64_t full = groups * train.micro_batches, unit = groups * train.sequences_per_pass;
  std::int64_t step = 0, read = 0;
  if (train.ramp_sequences > 0) {
    require(train.ramp_start % unit == 0 && train.ramp_increment % unit == 0,
            "train.ramp_start = {} and train.ramp_increment = {} sequences must be multiples of {}, which {} "
            "data-parallel groups read at a time (train.sequences_per_pass = {}): change them, or start "
            "another number of ranks",
            train.ramp_start, train.ramp_increment, unit, groups, train.sequences_per_pass);
    require(train.ramp_start < full && (full - train.ramp_start) % train.ramp_increment == 0,
            "a batch that begins with train.ramp_start = {} sequences and grows by train.ramp_increment = {} "
            "does not come to the {} of {} data-parallel groups with train.micro_batches = {}: "
            "change one of them",
            train.ramp_start, train.ramp_increment, full, groups, train.micro_batches);
    const std::int64_t increments = (full - train.ramp_start) / train.ramp_increment;
    for (std::int64_t i = 0; i < increments; ++i) {
      const std::int64_t batch = train.ramp_start + i * train.ramp_increment;
      // The step that reads past this one is the last of its size.
      const auto until = static_cast<std::int64_t>(
          std::llround(double(train.ramp_sequences) * double(i + 1) / double(increments)));
      if (read >= until) continue;
      levels_.push_back({step, read, batch});
      const std::int64_t steps = ceil_divide(until - read, batch);
      step += steps;
      read += steps * batch;
    }
  }
  levels_.push_back({step, read, full});
}

const BatchSchedule::Level& BatchSchedule::level_of(std::int64_t step) const {
  return *(std::ranges::upper_bound(levels_, step, {}, &Level::first_step) - 1);
}

std::int64_t BatchSchedule::of_step(std::int64_t step) const {
  return level_of(step).batch;
}

std::int64_t BatchSchedule::before(std::int64_t step) const {
  const Level& level = level_of(step);
  return level.before + (step - level.first_step) * level.batch;
}

std::int64_t BatchSchedule::steps_for(std::int64_t sequences) const {
  const auto level =
      std::find_if(levels_.rbegin(), levels_.rend(), [&](const Level& l) { return l.before < sequences; });
  return level == levels_.rend() ? 0
                                 : level->first_step + ceil_divide(sequences - level->before, level->batch);
}

std::int64_t total_steps(const Config& config, const BatchSchedule& batches, std::int64_t sequences) {
  const Config::Train& train = config.train;
  if (train.steps > 0) return train.steps;
  const double wanted = train.tokens > 0
                            ? std::ceil(double(train.tokens) / double(config.data.sequence_length))
                            : std::ceil(train.epochs * double(sequences));
  constexpr double most = 0x1p52;
  const std::string given = train.tokens > 0
                                ? fmt::format("train.tokens = {}", train.tokens)
                                : fmt::format("train.epochs = {} of {} sequences", train.epochs, sequences);
  require(wanted <= most, "{} are more than are counted: give fewer", given);
  return std::max<std::int64_t>(1, batches.steps_for(static_cast<std::int64_t>(wanted)));
}

}  // namespace annulus::training
