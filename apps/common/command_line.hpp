#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string_view>

#include <annulus/attention/comm/mpi.hpp>

namespace annulus::app {

/// Parses the command line. Returns nothing when the program is to go on, otherwise the exit code with which
/// it is to end: 0 after --help, 1 for what is wrong with the arguments (told by rank 0 alone). Collective.
/// Throws Error on all ranks, naming option and ranks, where their programs, the program's flags, the
/// subcommand or its options differ, or one rank alone has arguments that are wrong. Of `files`, which may
/// lie elsewhere on every machine, only whether they are given counts.
std::optional<int> parse(CLI::App& app, int argc, char** argv, const comm::MpiEnvironment& mpi,
                         std::span<const std::string_view> files = {});

}  // namespace annulus::app
