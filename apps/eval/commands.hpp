#pragma once

#include <annulus/attention/comm/mpi.hpp>

#include "common/run_commands.hpp"

namespace annulus::eval {

using app::add_command;

/// What the subcommand that was chosen does; gives the exit status.
using Command = std::function<int(const comm::MpiEnvironment&)>;

/// Declares a subcommand with its options and says what it does in `command` when it is chosen.
void add_generate(CLI::App& app, Command& command);
void add_make(CLI::App& app, Command& command);
void add_perplexity(CLI::App& app, Command& command);
void add_prefill(CLI::App& app, Command& command);
void add_retrieval(CLI::App& app, Command& command);

}  // namespace annulus::eval
