// annulus-weights: describes models and takes them in from Hugging Face's format and out to it.
#include <spdlog/spdlog.h>

#include "commands.hpp"
#include "common/log.hpp"

int main(int argc, char** argv) {
  annulus::app::start_log();  // standard output is the commands'
  spdlog::set_pattern("annulus-weights: %l: %v");
  CLI::App app(
      "Describes models, and takes them in from Hugging Face's format and out to it (docs/models.md).",
      "annulus-weights");
  annulus::weights_program::Command command;
  annulus::weights_program::add_info(app, command);
  annulus::weights_program::add_import(app, command);
  annulus::weights_program::add_export(app, command);
  app.footer(
      "Examples:\n"
      "  annulus-weights info MODEL\n"
      "  annulus-weights export runs/mine/checkpoints/step-00000400 EXPORTED\n"
      "annulus-weights COMMAND --help explains a command.");
  return annulus::app::run_commands(app, command, argc, argv);
}
