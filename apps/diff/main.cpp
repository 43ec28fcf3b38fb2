// annulus-diff: names the first tensor in which two dumps of the same computation differ.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <optional>
#include <string>

#include "base/printable.hpp"
#include "common/conventions.hpp"
#include "common/run_commands.hpp"
#include "compare.hpp"
#include "report.hpp"

namespace annulus::diff {
namespace {

struct DiffOptions {
  std::string a, b;
  std::optional<double> tolerance;
  bool table = false;
};

int run(const DiffOptions& options) {
  const TensorFile a(options.a), b(options.b);
  fmt::print("A: {} ({})\nB: {} ({})\n", printable(a.path()), printable(a.description()), printable(b.path()),
             printable(b.description()));
  const auto differences = compare(a, b, options.tolerance);
  if (options.table) fmt::print("{}", table(differences));
  fmt::print("{}", verdict(differences));
  return std::ranges::all_of(differences, &TensorDifference::passed) ? 0 : 1;
}

}  // namespace
}  // namespace annulus::diff

int main(int argc, char** argv) {
  CLI::App app(
      "Compares two dumps of the same computation (annulus-train --dump, annulus-bench attention --dump): "
      "on CPU and GPU, on one and many ranks, in any layouts. Names the first tensor, in order of "
      "computation, that differs (docs/debugging.md).",
      "annulus-diff");
  annulus::diff::DiffOptions options;
  annulus::app::add_conventions(app, "annulus-diff");
  app.add_option("A", options.a, "Tensor dump")->required();
  app.add_option("B", options.b, "Tensor dump that A is compared with")->required();
  app.add_option(
         "--tolerance", options.tolerance,
         "Largest error of an element: |a - b| over the largest of |a|, |b| and the root mean square of "
         "the tensor; a tenth of it for the norm of the difference. By default that of the type: 1e-3 for "
         "f32, 0.1 for f16, 0.5 for bf16; 0 for integers")
      ->check(annulus::app::at_least(0));
  app.add_flag("--table", options.table, "Print a line for every tensor");
  app.footer(
      "Example: annulus-diff cpu.h5 gpu.h5 --table\n"
      "Exit status: 0 when nothing differs, 1 when something does, 2 after an error.");
  return annulus::app::run_program(
      app, [&] { return annulus::diff::run(options); }, argc, argv, 2);
}
