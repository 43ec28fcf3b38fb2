#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace annulus::weights_program {

/// What a subcommand does once the command line is parsed; gives the exit status.
using Command = std::function<int()>;

/// Each declares a subcommand with its options and says what it does in `command` when it is chosen.
void add_info(CLI::App& app, Command& command);
void add_import(CLI::App& app, Command& command);
void add_export(CLI::App& app, Command& command);

}  // namespace annulus::weights_program
