#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace annulus::app {

/// What a subcommand does once the command line is parsed; gives the exit status.
using Command = std::function<int()>;

/// The main of a program of subcommands without MPI. Parses the command line, of which one subcommand is
/// required and sets `command`, runs it, and returns the exit status: 1 for arguments that are wrong and for
/// an exception, of which one line goes to stderr.
int run_commands(CLI::App& app, const Command& command, int argc, char** argv);

}  // namespace annulus::app
