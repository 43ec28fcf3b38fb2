#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include <annulus/base/error.hpp>

#include "bench/commands.hpp"
#include "bench/report/case_file.hpp"
#include "bench/report/columns.hpp"
#include "bench/report/page.hpp"
#include "bench/report/relate.hpp"
#include "options/shared.hpp"
#include "training/io/atomic.hpp"

namespace annulus::bench {

using nlohmann::json;

namespace {

/// Cases and unsupported combinations, each once.
struct Joined {
  std::vector<json> cases, unsupported;
  std::string build;

  void add(const std::filesystem::path& file) {
    const CaseFile content = read_case_file(file);
    if (build.empty()) build = content.git_hash;
    require(content.git_hash == build,
            "{} was written by the build {}, the files before it by {}: builds are not to be compared in one "
            "table; run its cases again",
            file.string(), content.git_hash, build);
    for (const json& of_case : content.cases) put(of_case);
    for (const json& some : content.unsupported)
      if (std::ranges::find(unsupported, some) == unsupported.end()) unsupported.push_back(some);
  }

 private:
  void put(const json& of_case) {
    const auto same =
        std::ranges::find_if(cases, [&](const json& other) { return is_same_case(other, of_case); });
    if (same == cases.end())
      cases.push_back(of_case);
    else
      *same = of_case;
  }
};

struct JoinOptions {
  std::vector<std::filesystem::path> files;  ///< what `annulus-bench attention --json` wrote
  std::filesystem::path csv, html;           ///< empty: none
};

/// One table and one page of the cases of several runs. A case that several files hold counts as the last one
/// has it. Throws Error naming the file for what is no result of `annulus-bench attention`, and for results
/// of different builds, which are not to be compared.
int run_report(JoinOptions& o, const comm::MpiEnvironment& mpi) {
  require(mpi.size() == 1, "annulus-bench report joins files: start it as one process, not as {} ranks",
          mpi.size());
  require(!o.csv.empty() || !o.html.empty(), "annulus-bench report writes files: give --csv, --html or both");
  Joined joined;
  for (const auto& file : o.files) joined.add(file);
  require(!joined.cases.empty(), "no case was run in {} files: there is nothing to report", o.files.size());
  relate(joined.cases);
  std::set<int> nodes;
  for (const json& of_case : joined.cases) nodes.insert(of_case["topology"]["nodes"].get<int>());
  if (!o.csv.empty()) io::write_text_atomically(o.csv, to_csv(joined.cases));
  if (!o.html.empty()) io::write_text_atomically(o.html, to_html(joined.cases, joined.unsupported));
  fmt::print("{} cases of {} files, {} unsupported, on {} numbers of nodes\n", joined.cases.size(),
             o.files.size(), joined.unsupported.size(), nodes.size());
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(app, chosen, "report",
                                  "One table and one page of several runs of annulus-bench attention, such "
                                  "as those of a scaling study on 1, "
                                  "2, 4, … nodes (docs/benchmarking.md). It measures nothing.",
                                  run_report);
  options::SharedOptions shared(command);
  command.add_option("files", o.files, "Files that annulus-bench attention --json wrote")
      ->required()
      ->expected(1, -1);
  shared.add(options::Shared::csv, o.csv);
  shared.add(options::Shared::html, o.html, ": strong and weak scaling and a table of all cases");
}

}  // namespace annulus::bench
