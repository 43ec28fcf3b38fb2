// annulus-weights: describes models and takes them in from Hugging Face's format and out to it.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <exception>

#include <annulus/base/version.hpp>

#include "commands.hpp"

int main(int argc, char** argv) {
  // Beyond 'ulimit -f' a write is to fail with a message instead of ending the process.
  std::signal(SIGXFSZ, SIG_IGN);
  // Standard output is the commands'.
  spdlog::set_default_logger(spdlog::stderr_color_mt("annulus-weights"));
  spdlog::set_pattern("annulus-weights: %l: %v");
  CLI::App app(
      "Describes models, and takes them in from Hugging Face's format and out to it (docs/models.md).",
      "annulus-weights");
  app.set_version_flag("--version", std::string(annulus::version()));
  app.require_subcommand(1);
  annulus::weights_program::Command command;
  annulus::weights_program::add_info(app, command);
  annulus::weights_program::add_import(app, command);
  annulus::weights_program::add_export(app, command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;
  }
  try {
    return command();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "annulus-weights: %s\n", error.what());
    return 1;
  }
}
