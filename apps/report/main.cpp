// annulus-report: one page about a training run, or several side by side.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <annulus/base/error.hpp>

#include "base/printable.hpp"
#include "common/conventions.hpp"
#include "common/run_commands.hpp"
#include "page.hpp"
#include "tables.hpp"
#include "training/io/atomic.hpp"

namespace annulus::report {
namespace {

/// The page may lie in a run's folder, but takes the place of no file of the run.
void check_place(const std::string& html, const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // of what is not there
  const fs::path page = fs::weakly_canonical(html, ignored);
  if (!fs::exists(page, ignored) || page.extension() == ".html") return;
  for (const std::string& folder : folders) {
    const fs::path inside = page.lexically_relative(fs::weakly_canonical(folder, ignored));
    require(inside.empty() || *inside.begin() == "..",
            "--html '{}' is a file of the run '{}': choose another name, as in {}/report.html",
            printable(html), printable(folder), printable(folder));
  }
}

int run(const std::vector<std::string>& folders, const std::string& html) {
  if (!html.empty()) {
    check_place(html, folders);
    io::require_writable(html);
  }
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

int run_tables(const std::vector<std::string>& files, const std::string& html) {
  require(!html.empty(), "--tables: a page is all that is made of them: name it with --html PAGE");
  io::require_writable(html);
  io::write_text_atomically(html, tables_page({files.begin(), files.end()}));
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
  std::vector<std::string> folders, tables;
  std::string html;
  annulus::app::add_conventions(app, "annulus-report");
  auto* const of_runs = app.add_option("RUN", folders, "Folder of a run (run.folder)");
  app.add_option("--tables", tables,
                 "Markdown files of the scripts of apps/compare, for the page, in the place of runs")
      ->excludes(of_runs);
  app.add_option("--html", html, "Page to write; it needs no other file");
  app.footer("Example: annulus-report runs/dense runs/sparse --html report.html");
  return annulus::app::run_program(
      app,
      [&] {
        annulus::require(!folders.empty() || !tables.empty(), "give the folder of a run, or --tables FILE");
        return tables.empty() ? annulus::report::run(folders, html)
                              : annulus::report::run_tables(tables, html);
      },
      argc, argv);
}
