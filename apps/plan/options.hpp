#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/choose.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "options/cluster.hpp"
#include "options/problem.hpp"
#include "options/sparsity.hpp"

namespace annulus::planner {

/// The command line.
struct PlanOptions {
  options::ProblemOptions problem = {.tokens = 131072, .heads = 32, .dtype = "bf16"};
  options::ClusterOptions cluster;
  std::string schedule = "ring", layout = "zigzag", pass = "forward";
  std::string placement;  ///< of hybrid; empty: as the schedule says it
  std::string sparsity;   ///< share that is left out, or a file with a selection; empty: all pairs
  std::string documents;  ///< a file with their lengths; empty: as the mask says
  const CLI::Option* tokens = nullptr;  ///< --tokens: whether it is given counts beside --documents
  std::int64_t positions = 0;           ///< that take part (plan::Problem::positions); 0: all
  std::filesystem::path json, html;
  bool compare = false, validate = false, print = false, no_steps = false;
  std::optional<int> rank;                   ///< of print
  std::optional<std::int64_t> memory_limit;  ///< bytes of a rank's exchange buffers, of what is chosen
};

void add_options(CLI::App& app, PlanOptions& options);

/// What the options ask about.
struct PlanCase {
  bool is_open() const { return schedule == simulator::automatic || layout == simulator::automatic; }
  /// How what is open is chosen.
  simulator::ChooseOptions choose_options() const;

  simulator::Cluster cluster;
  std::string rates;     ///< whose they are (options::rates_text)
  std::string schedule;  ///< with what --placement says, or "auto"
  std::string layout;    ///< the problem's, or "auto"
  std::optional<std::int64_t> memory_limit;
  plan::Problem problem;
  plan::Pass pass = plan::Pass::forward;
  options::Sparsity sparsity;
  bool shows_documents = false;  ///< there is a file of --documents
  bool no_steps = false;         ///< in the JSON file
  double planning_seconds = 0;   ///< CPU time of the cut, the plan, and the steps of one rank
};

/// Reads the cluster file and checks the options. Throws Error naming the option that is wrong.
PlanCase make_case(const PlanOptions& options);

}  // namespace annulus::planner
