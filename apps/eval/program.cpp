#include "eval/program.hpp"

#include <array>
#include <string_view>

#include "common/command_line.hpp"
#include "common/conventions.hpp"
#include "common/run_main.hpp"
#include "eval/commands.hpp"

namespace annulus::eval {

int run_program(int argc, char** argv) {
  return app::run_main(argc, argv, [](comm::MpiEnvironment& mpi, int count, char** arguments) {
    CLI::App program("Tells what a trained model does with text, and how well. Ranks share each sequence.");
    app::add_conventions(program, "annulus-eval");
    program.require_subcommand(1);
    Command command;
    add_generate(program, command);
    add_make(program, command);
    add_perplexity(program, command);
    add_prefill(program, command);
    add_retrieval(program, command);
    program.footer(
        "Example:\n"
        "  annulus-eval generate runs/mine --prompt 'int main(' --tokens 60\n"
        "  annulus-eval perplexity runs/mine --shards shards --length 32k --html loss.html\n"
        "  annulus-eval make --out samples --lengths 4k,32k && annulus-eval retrieval runs/mine --samples "
        "samples\n"
        "annulus-eval COMMAND --help explains a command.");
    constexpr std::array<std::string_view, 2> files{"--prompt-file", "--shards"};
    const auto status = app::parse(program, count, arguments, mpi, files);
    return status ? *status : command(mpi);
  });
}

}  // namespace annulus::eval
