#pragma once

#include "common/run_commands.hpp"

namespace annulus::tokens {

using app::Command;

/// Each declares a subcommand with its options and says what it does in `command` when it is chosen.
void add_pack(CLI::App& app, Command& command);
void add_info(CLI::App& app, Command& command);
void add_verify(CLI::App& app, Command& command);

}  // namespace annulus::tokens
