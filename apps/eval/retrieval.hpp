#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/config.hpp>

#include "eval/evaluation/model.hpp"
#include "eval/retrieval_report.hpp"
#include "eval/samples/sample_set.hpp"

namespace annulus::eval {

/// How a model answers the samples of a shard, by the configuration that evaluation_config has made for that
/// shard and its length. A sample is answered where each token of its answer is the greedy choice behind the
/// tokens before it (teacher forcing): where greedy decoding gives this answer. Adds to `retrieval` the
/// samples and what is known of how they were computed. Collective; the same on every rank. Throws Error
/// naming the key that does not fit, and where the shard does not say which tokens are answers.
void answer_samples(comm::Communicator& world, const training::Config& config, LazyWeights& weights,
                    const SampleShard& shard, Retrieval& retrieval);

}  // namespace annulus::eval
