#pragma once

#include <string>
#include <vector>

#include <annulus/training/checkpoint/reader.hpp>

#include "training/data/blend/blend.hpp"
#include "training/run/report.hpp"

/// Where a run reads its data: what checkpoints keep of it, and how a run goes on.
namespace annulus::training {

/// Notes in `progress` what was read of each set.
void keep_reading(const data::Blend& data, const data::BlendState& state, checkpoint::Progress& progress);

/// Where reading goes on behind a checkpoint.
struct ReadOn {
  data::BlendState state;
  std::vector<std::string> notes;  ///< what is other than it was, for the log
};
/// Shards may have come behind those of a set: they are read from the next epoch of the set on. Sets of
/// data.sets may have other weights, which count from here on; sets may be new or left out. Throws Error that
/// names key and set where data that was read is another, or there no more.
ReadOn read_on(const checkpoint::Progress& progress, const data::Blend& data);

/// What was read of each set of data.sets since `before`, by the step that found `result`; nothing with
/// data.shards.
std::vector<SetRead> sets_read(const std::vector<checkpoint::SetProgress>& before, const data::Blend& data,
                               const data::BlendState& now, const StepResult& result);

/// The sets that are read anew from here on; a line of the log each.
std::vector<std::string> epoch_notes(const std::vector<SetRead>& sets);

/// What the data of a set are, for the log.
std::string data_text(const data::Blend& data, std::size_t set);

}  // namespace annulus::training
