// annulus-report: one page about a training run, or several side by side.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "base/printable.hpp"
#include "common/conventions.hpp"
#include "common/run_commands.hpp"
#include "page.hpp"
#include "training/io/atomic.hpp"

namespace annulus::report {
namespace {

int run(const std::vector<std::string>& folders, const std::string& html) {
  if (!html.empty()) io::require_writable(html);
  std::vector<RunRecord> runs;
  for (const std::string& folder : folders) {
    runs.push_back(read_run(folder));
    fmt::print("{}: {}\n", printable(runs.back().name), headline(runs.back()));
  }
  if (html.empty()) return 0;
  io::write_text_atomically(html, page(runs));
  fmt::print("wrote {}\n", printable(html));
  return 0;
}

}  // namespace
}  // namespace annulus::report

int main(int argc, char** argv) {
  CLI::App app(
      "Says what training runs have reached, and draws loss, gradient norm, learning rate, speed, waiting "
      "and memory of one or several "
      "of them side by side. Runs that go on may be looked at.",
      "annulus-report");
  std::vector<std::string> folders;
  std::string html;
  annulus::app::add_conventions(app, "annulus-report");
  app.add_option("RUN", folders, "Folder of a run (run.folder)")->required();
  app.add_option("--html", html, "Page to write; it needs no other file");
  app.footer("Example: annulus-report runs/dense runs/sparse --html report.html");
  return annulus::app::run_program(
      app, [&] { return annulus::report::run(folders, html); }, argc, argv);
}
