#pragma once

#include <spdlog/logger.h>

#include <memory>

namespace annulus::app {

/// Makes the log of the program: to stderr, without what a terminal or a reader of the log would take for
/// something else in names of files, tensors and jobs (base/printable.hpp). Whoever adds sinks gets the same.
std::shared_ptr<spdlog::logger> start_log();

}  // namespace annulus::app
