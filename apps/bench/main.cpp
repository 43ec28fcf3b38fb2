#include <array>
#include <string_view>

#include "bench/commands.hpp"
#include "common/command_line.hpp"
#include "common/conventions.hpp"
#include "common/run_main.hpp"

int main(int argc, char** argv) {
  using namespace annulus;
  return app::run_main(argc, argv, [](comm::MpiEnvironment& mpi, int count, char** arguments) {
    CLI::App program("Benchmarks of distributed attention.");
    app::add_conventions(program, "annulus-bench");
    program.require_subcommand(1);
    bench::Command command;
    for (const auto& add : {bench::add_attention, bench::add_links, bench::add_kernels, bench::add_emulate,
                            bench::add_lm_head, bench::add_matmul, bench::add_report})
      add(program, command);
    program.footer(
        "Examples:\n"
        "  mpirun -n 4 annulus-bench attention --schedule ring burst --tokens 4k --check\n"
        "  mpirun -n 4 annulus-bench links --output cluster.toml\n"
        "annulus-bench COMMAND --help explains a command.");
    constexpr std::array<std::string_view, 8> files{"--json", "--csv",     "--html",   "--dump",
                                                    "--data", "--cluster", "--output", "--base"};
    const auto status = app::parse(program, count, arguments, mpi, files);
    return status ? *status : command(mpi);
  });
}
