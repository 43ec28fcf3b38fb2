#pragma once

#include <string>

#include <annulus/attention/comm/communicator.hpp>

#include "bench/attention/cases/case.hpp"
#include "bench/attention/measure/prediction.hpp"
#include "bench/attention/measure/report.hpp"

namespace annulus::bench {

/// What moves and computes a case on the ranks of the communicator: their transport, their kernel.
Machinery machinery_of(const BenchCase& c, const comm::Communicator& communicator);

/// What the log is to say of a local kernel that is far slower than others on the device; else empty.
std::string kernel_warning(const BenchCase& c);

/// Proves the plans, warms up, checks and times a case on all ranks of the communicator, which are those of
/// the case. Each repetition runs the local kernel alone, on all ranks at once, before each pass, so that
/// what else the machine does meets both alike. Complete on rank 0; `check` is there on every rank when it
/// was asked for.
CaseReport measure(const BenchCase& c, comm::Communicator& communicator, const PredictionSource& machine);

}  // namespace annulus::bench
