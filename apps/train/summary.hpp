#pragma once

#include <annulus/train/config.hpp>
#include <annulus/train/trainer.hpp>

namespace annulus::app {

/// Prints how a run went (losses beside the entropy of the corpus, speed, memory, where things lie, what to
/// try next) to standard output and writes the same numbers to run.folder/summary.json. For rank 0.
void summarize(const train::Config& config, const train::Outcome& outcome, int ranks);

}  // namespace annulus::app
