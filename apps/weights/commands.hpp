#pragma once

#include "common/run_commands.hpp"

namespace annulus::weights_program {

using app::Command;

/// Each declares a subcommand with its options and says what it does in `command` when it is chosen.
void add_info(CLI::App& app, Command& command);
void add_import(CLI::App& app, Command& command);
void add_export(CLI::App& app, Command& command);

}  // namespace annulus::weights_program
