// annulus-tokens: makes, describes and checks the token shards that training reads.
#include "commands.hpp"

int main(int argc, char** argv) {
  CLI::App app("Makes, describes and checks token shards (docs/formats/token-shards.md).", "annulus-tokens");
  annulus::tokens::Command command;
  annulus::tokens::add_pack(app, command);
  annulus::tokens::add_info(app, command);
  annulus::tokens::add_verify(app, command);
  app.footer(
      "Examples:\n"
      "  annulus-tokens pack --out shards --extensions .md,.txt ~/texts\n"
      "  annulus-tokens info shards\n"
      "annulus-tokens COMMAND --help explains a command.");
  return annulus::app::run_commands(app, command, argc, argv);
}
