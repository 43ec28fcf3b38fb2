// annulus-tokens: makes, describes and checks the token shards that training reads.
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <exception>

#include <annulus/base/version.hpp>

#include "commands.hpp"

int main(int argc, char** argv) {
  // Beyond 'ulimit -f' a write is to fail with a message instead of ending the process.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("Makes, describes and checks token shards (docs/formats/token-shards.md).", "annulus-tokens");
  app.set_version_flag("--version", std::string(annulus::version()));
  app.require_subcommand(1);
  annulus::tokens::Command command;
  annulus::tokens::add_pack(app, command);
  annulus::tokens::add_info(app, command);
  annulus::tokens::add_verify(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }
  try {
    return command();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "annulus-tokens: %s\n", error.what());
    return 1;
  }
}
