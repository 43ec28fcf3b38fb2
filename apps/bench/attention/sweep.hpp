#pragma once

#include <annulus/comm/mpi.hpp>

#include "bench/attention/cases/options.hpp"

namespace annulus::bench {

/// Runs `annulus-bench attention` on all ranks of the job. Returns the exit status: 1 when --check finds an
/// error beyond the tolerance.
int run_attention(const SweepOptions& options, const comm::MpiEnvironment& mpi);

}  // namespace annulus::bench
