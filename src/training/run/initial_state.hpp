#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/checkpoint/reader.hpp>
#include <annulus/training/data/tokenizer.hpp>
#include <annulus/training/run/config.hpp>

#include "training/run/saving/run_folder.hpp"
#include "training/run/state/learner.hpp"

namespace annulus::training {

/// Every rank reads its share of the checkpoint that rank 0 (whose `folder` is not null) goes on from, and
/// the learner resumes there. A damaged one is passed over for an older one where the folder may choose.
/// What it says of the run. Collective. Throws Error naming file and tensor where the checkpoint is of
/// another model, or damaged and the only one.
checkpoint::Progress restore(comm::Communicator& world, Learner& learner, RunFolder* folder);

/// The run starts from the weights of model.from: every rank reads its share, and the moments are zero.
/// Rank 0 logs what the run starts from, and keeps the model's other files in run.folder for exports where
/// `tokenizer`, of the run's data, is the model's (docs/models.md). Collective. Throws Error on all ranks,
/// naming file and tensor, when a rank cannot read its share, and when the ranks have different weights.
void start_from_weights(comm::Communicator& world, Learner& learner, const Config& config,
                        const data::TokenizerIdentity& tokenizer);

}  // namespace annulus::training
