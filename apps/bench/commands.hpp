#pragma once

#include <annulus/attention/comm/mpi.hpp>

#include "common/run_commands.hpp"

namespace annulus::bench {

using app::add_command;

/// What the subcommand that was chosen does on all ranks of the job; gives the exit status.
using Command = std::function<int(const comm::MpiEnvironment&)>;

/// Each declares a subcommand with its options and says what it does in `command` when it is chosen.
void add_attention(CLI::App& app, Command& command);
void add_links(CLI::App& app, Command& command);
void add_kernels(CLI::App& app, Command& command);
void add_emulate(CLI::App& app, Command& command);
void add_lm_head(CLI::App& app, Command& command);
void add_matmul(CLI::App& app, Command& command);
void add_report(CLI::App& app, Command& command);

}  // namespace annulus::bench
