#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace annulus::app {

/// What a program or a subcommand does once the command line is parsed; gives the exit status.
using Command = std::function<int()>;

/// A subcommand, and the Options into which its options are to be read, with which `run` is called when it is
/// chosen: it becomes `command`.
template <class Options, class... Arguments>
std::pair<CLI::App&, Options&> add_command(CLI::App& app, std::function<int(Arguments...)>& command,
                                           const std::string& name, const std::string& description,
                                           int (*run)(Options&, Arguments...)) {
  CLI::App& made = *app.add_subcommand(name, description);
  const auto options = std::make_shared<Options>();
  made.parse_complete_callback([&command, options, run] {
    command = [options, run](Arguments... arguments) { return run(*options, arguments...); };
  });
  return {made, *options};
}

/// The main of a program without MPI. Parses the command line, does `command` and returns the exit status:
/// `error_status` for arguments that are wrong, for an exception, of which one line goes to stderr, and where
/// not all that was printed could be written to standard output. Ends by SIGPIPE where the reader of the
/// output has gone away.
int run_program(CLI::App& app, const Command& command, int argc, char** argv, int error_status = 1);

/// run_program for a program of subcommands, of which one is required and sets `command`.
int run_commands(CLI::App& app, const Command& command, int argc, char** argv);

}  // namespace annulus::app
