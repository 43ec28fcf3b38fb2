#include "common/run_commands.hpp"

#include <annulus/base/printable.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "common/conventions.hpp"

namespace annulus::app {

int run_commands(CLI::App& app, const Command& command, int argc, char** argv) {
  // Beyond 'ulimit -f' a write is to fail with a message instead of ending the process.
  std::signal(SIGXFSZ, SIG_IGN);
  add_conventions(app, app.get_name());
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }
  try {
    return command();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), printable_message(error.what()).c_str());
    return 1;
  }
}

}  // namespace annulus::app
