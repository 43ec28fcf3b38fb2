#include "bench/report/join.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>

#include "bench/report/case_file.hpp"
#include "bench/report/csv.hpp"
#include "bench/report/page.hpp"
#include "bench/report/relate.hpp"
#include "options/shared.hpp"

namespace annulus::bench {

using nlohmann::json;

CLI::App* add_join_command(CLI::App& app, JoinOptions& o) {
  CLI::App* command =
      app.add_subcommand("report",
                         "One table and one page of several runs of annulus-bench attention, such as those "
                         "of a scaling study on "
                         "1, 2, 4, … nodes (docs/attention-benchmark.md). It measures nothing.");
  options::SharedOptions shared(*command);
  command->add_option("files", o.files, "Files that annulus-bench attention --json wrote")
      ->required()
      ->expected(1, -1);
  shared.add(options::Shared::csv, o.csv);
  shared.add(options::Shared::html, o.html, ": strong and weak scaling and a table of all cases");
  return command;
}

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
      if (std::find(unsupported.begin(), unsupported.end(), some) == unsupported.end())
        unsupported.push_back(some);
  }

 private:
  void put(const json& of_case) {
    const auto same = std::find_if(cases.begin(), cases.end(),
                                   [&](const json& other) { return is_same_case(other, of_case); });
    if (same == cases.end())
      cases.push_back(of_case);
    else
      *same = of_case;
  }
};

}  // namespace

int run_join(const JoinOptions& o) {
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

}  // namespace annulus::bench
