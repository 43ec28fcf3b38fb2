#pragma once

#include <annulus/comm/communicator.hpp>
#include <annulus/data/tokenizer.hpp>
#include <annulus/train/config.hpp>

#include "train/learner.hpp"

namespace annulus::train {

/// The run starts from the weights of model.from: every rank reads its share, and the moments are zero.
/// Rank 0 logs what the run starts from, and keeps the model's other files in run.folder for exports where
/// `tokenizer`, of the run's data, is the model's (docs/models.md). Collective. Throws Error on all ranks,
/// naming file and tensor, when a rank cannot read its share, and when the ranks have different weights.
void start_from_weights(comm::Communicator& world, Learner& learner, const Config& config,
                        const data::TokenizerIdentity& tokenizer);

}  // namespace annulus::train
