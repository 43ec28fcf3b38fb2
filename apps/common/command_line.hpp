#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace annulus::app {

/// Parses the command line. Returns nothing when the program is to go on, otherwise the exit code with which
/// it is to end: 0 after --help, 1 for what is wrong with the arguments (told by rank 0 alone; all ranks find
/// the same).
std::optional<int> parse(CLI::App& app, int argc, char** argv, int rank);

}  // namespace annulus::app
