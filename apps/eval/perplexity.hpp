#pragma once

#include <cstdint>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/config.hpp>

#include "eval/evaluation/model.hpp"
#include "eval/perplexity_report.hpp"

namespace annulus::eval {

/// Which windows of data.shards are measured (data::Windows).
struct WindowChoices {
  std::int64_t stride = 0;   ///< 0: data.sequence_length, windows side by side
  std::int64_t windows = 0;  ///< at most so many, evenly spread; 0: all
};

/// The loss of a model on data.shards, by the configuration that evaluation_config has made. Shows in the log
/// how far it has come. Collective; the same on every rank. Throws Error naming the key that does not fit.
Perplexity measure_perplexity(comm::Communicator& world, const training::Config& config, LazyWeights& weights,
                              const WindowChoices& choices);

}  // namespace annulus::eval
