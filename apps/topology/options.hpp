#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace annulus::topology_app {

struct TopologyOptions {
  std::vector<std::string> xml;  ///< [HOST=]FILE
  std::string from;
  std::string profile;
  std::string ranks_file;
  std::string switches;
  int ranks_per_node = 0;
  int local_rank = -1;
  int local_ranks = 0;
  int nodes = 0;
  std::string hostfile;

  std::string node_type;
  std::string bound = "usual";  ///< low, usual or high

  std::string save;
  std::string output;
  std::string json;
  bool env = false;
  bool launch = false;
  bool where = false;
  bool execute = false;
  bool strict = false;
  std::vector<std::string> command;
};

void add_options(CLI::App& app, TopologyOptions& options);

}  // namespace annulus::topology_app
