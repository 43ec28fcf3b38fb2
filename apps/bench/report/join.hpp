#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <vector>

namespace annulus::bench {

/// The command line of `annulus-bench report`.
struct JoinOptions {
  std::vector<std::filesystem::path> files;  ///< what `annulus-bench attention --json` wrote
  std::filesystem::path csv, html;           ///< empty: none
};

/// Declares the command with its options, which land in `options` when the command line is parsed.
CLI::App* add_join_command(CLI::App& app, JoinOptions& options);

/// One table and one page of the cases of several runs, such as the jobs of a scaling study, each on another
/// number of nodes. A case that several files hold counts as the last one has it. Returns the exit status.
/// Throws Error naming the file for what is no result of `annulus-bench attention`, and for results of
/// different builds, which are not to be compared.
int run_join(const JoinOptions& options);

}  // namespace annulus::bench
