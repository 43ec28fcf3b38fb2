#pragma once

#include <memory>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/mpi.hpp>
#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// What run.device stands for in this build. Throws Error when it asks for a GPU of a build without.
bool computes_on_gpu(const Config& config);

/// The ranks of the job, as the section parallel says, and none of them to wait longer than
/// run.stall_timeout. Collective. Throws Error naming the key; on all ranks when program or configuration are
/// not the same.
std::unique_ptr<comm::Communicator> connect(const comm::MpiEnvironment& mpi, const Config& config);

}  // namespace annulus::training
