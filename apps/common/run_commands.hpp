#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace annulus::app {

/// What a program or a subcommand does once the command line is parsed; gives the exit status.
using Command = std::function<int()>;

/// The main of a program without MPI. Parses the command line, does `command` and returns the exit status:
/// `error_status` for arguments that are wrong, for an exception, of which one line goes to stderr, and where
/// not all that was printed could be written to standard output. Ends by SIGPIPE where the reader of the
/// output has gone away.
int run_program(CLI::App& app, const Command& command, int argc, char** argv, int error_status = 1);

/// The same for a program of subcommands, of which one is required and sets `command`.
int run_commands(CLI::App& app, const Command& command, int argc, char** argv);

}  // namespace annulus::app
