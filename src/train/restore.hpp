#pragma once

#include <annulus/checkpoint/state.hpp>
#include <annulus/comm/communicator.hpp>

#include "train/learner.hpp"
#include "train/run_folder.hpp"

namespace annulus::train {

/// Every rank reads its share of the checkpoint that rank 0 (whose `folder` is not null) goes on from, and
/// the learner resumes there. A damaged one is passed over for an older one where the folder may choose.
/// What it says of the run. Collective. Throws Error naming file and tensor where the checkpoint is of
/// another model, or damaged and the only one.
checkpoint::Progress restore(comm::Communicator& world, Learner& learner, RunFolder* folder);

}  // namespace annulus::train
