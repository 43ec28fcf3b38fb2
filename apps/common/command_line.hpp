#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <span>
#include <string_view>

#include <annulus/comm/agreement.hpp>

namespace annulus::app {

/// Parses the command line. Returns nothing when the program is to go on, otherwise the exit code with which
/// it is to end: 0 after --help, 1 for what is wrong with the arguments (told by rank 0 alone; all ranks find
/// the same).
std::optional<int> parse(CLI::App& app, int argc, char** argv, int rank);

/// The program and the options of a parsed command, as ranks compare them before they do anything together.
/// Of `files` only whether they are given counts: they may lie elsewhere on every machine.
comm::Facts command_facts(const CLI::App& command, std::span<const std::string_view> files);

}  // namespace annulus::app
