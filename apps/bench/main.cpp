#include <fmt/format.h>

#include <array>
#include <string_view>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "bench/attention/cases/options.hpp"
#include "bench/attention/sweep.hpp"
#include "bench/emulate/emulate.hpp"
#include "bench/gemms/lm_head.hpp"
#include "bench/gemms/matmul.hpp"
#include "bench/kernels/kernels.hpp"
#include "bench/links/links.hpp"
#include "bench/report/join.hpp"
#include "common/command_line.hpp"
#include "common/run_main.hpp"

int main(int argc, char** argv) {
  return annulus::app::run_main(
      argc, argv, [](annulus::comm::MpiEnvironment& mpi, int count, char** arguments) {
        CLI::App app("Benchmarks of distributed attention.");
        app.set_version_flag("--version",
                             fmt::format("annulus {} ({})", annulus::version(), annulus::git_hash()));
        app.require_subcommand(1);
        annulus::bench::SweepOptions options;
        annulus::bench::add_attention_command(app, options);
        annulus::bench::LinksOptions links;
        const CLI::App* const links_command = annulus::bench::add_links_command(app, links);
        annulus::bench::KernelsOptions kernels;
        const CLI::App* const kernels_command = annulus::bench::add_kernels_command(app, kernels);
        annulus::bench::EmulateOptions emulate;
        const CLI::App* const emulate_command = annulus::bench::add_emulate_command(app, emulate);
        annulus::bench::LmHeadCommand lm_head;
        const CLI::App* const lm_head_command = annulus::bench::add_lm_head_command(app, lm_head);
        annulus::bench::MatmulCommand matmul;
        const CLI::App* const matmul_command = annulus::bench::add_matmul_command(app, matmul);
        annulus::bench::JoinOptions join;
        const CLI::App* const join_command = annulus::bench::add_join_command(app, join);
        constexpr std::array<std::string_view, 8> files{"--json", "--csv",     "--html",   "--dump",
                                                        "--data", "--cluster", "--output", "--base"};
        if (const auto code = annulus::app::parse(app, count, arguments, mpi, files)) return *code;
        if (links_command->parsed()) return annulus::bench::run_links(links, mpi);
        if (join_command->parsed()) {
          annulus::require(mpi.size() == 1,
                           "annulus-bench report joins files: start it as one process, not as {} ranks",
                           mpi.size());
          return annulus::bench::run_join(join);
        }
        if (kernels_command->parsed()) return annulus::bench::run_kernels(kernels, mpi);
        if (emulate_command->parsed()) return annulus::bench::run_emulate(emulate, mpi);
        if (lm_head_command->parsed()) return annulus::bench::run_lm_head(lm_head, mpi);
        if (matmul_command->parsed()) return annulus::bench::run_matmul(matmul, mpi);
        return annulus::bench::run_attention(options, mpi);
      });
}
