#include "topology/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include <annulus/base/error.hpp>

#include "common/text.hpp"
#include "training/io/atomic.hpp"

namespace annulus::topology_app {
namespace {

/// Slurm's counts, one a node of the job, must agree.
void require_equal(const Variables& variables, const char* name, const Job& job, const char* what,
                   const char* remedy) {
  const auto text = variables(name);
  if (!text) return;
  const std::vector<int> counts = expand_counts(*text, name);
  for (std::size_t node = 1; node < counts.size() && node < job.hosts.size(); ++node)
    require(counts[node] == counts[0], "{} has {} {} of this job and {} has {} ({}={}): {}", job.hosts[0],
            counts[0], what, job.hosts[node], counts[node], name, *text, remedy);
}

int cpus_on_node(const JobInventory& inventory, const Variables& variables) {
  if (const int given = positive_number(variables, "SLURM_CPUS_ON_NODE"); given > 0) return given;
  int cpus = 0;
  for (const machine::Core& core : inventory.nodes.front().machine.cores)
    cpus += core.allowed ? static_cast<int>(core.cpus.size()) : 0;
  return cpus;
}

/// What the user asked Slurm for, else an equal share. A number of ranks that Slurm was not told
/// (--ranks-per-node) leaves no meaning to --cpus-per-task.
int cpus_of_rank(const TopologyOptions& options, const Variables& variables, int cpus, int ranks) {
  const int asked = options.ranks_per_node > 0 ? 0 : positive_number(variables, "SLURM_CPUS_PER_TASK");
  return asked > 0 ? asked : cpus / ranks;
}

/// Leaf switches above some nodes; none unless all of these are known.
std::vector<std::string> leaves_above(const Job& job, const std::vector<int>& nodes) {
  std::vector<std::string> names;
  for (const int node : nodes) {
    const int leaf = job.leaf(node);
    if (leaf < 0) return {};
    const std::string& name = job.leaves[leaf].name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

/// What srun or mpirun are to be told.
struct Launch {
  std::vector<std::string> hosts;     ///< in the order of the ranks
  std::vector<std::string> switches;  ///< leaf switches above these, in the same order; empty: not known
  int ranks_per_node = 1;
  int cpus_per_rank = 1;   ///< logical CPUs, as --cpus-per-task counts
  bool arbitrary = false;  ///< the order is not Slurm's own: it needs a host file
};

Launch plan_launch(const TopologyOptions& options, const JobInventory& inventory,
                   const Variables& variables) {
  require_equal(
      variables, "SLURM_JOB_CPUS_PER_NODE", inventory.job, "logical CPUs",
      "ranks do equal work: ask for whole nodes of one type (--exclusive, --constraint), or for equal parts "
      "(--ntasks-per-node, --cpus-per-task)");
  if (variables("SLURM_NTASKS") && options.ranks_per_node == 0)
    require_equal(variables, "SLURM_TASKS_PER_NODE", inventory.job, "tasks",
                  "ranks do equal work: give --ntasks-per-node and not only --ntasks");
  Launch launch;
  launch.ranks_per_node = static_cast<int>(inventory.nodes.front().ranks.size());
  const int cpus = cpus_on_node(inventory, variables);
  launch.cpus_per_rank = cpus_of_rank(options, variables, cpus, launch.ranks_per_node);
  require(launch.cpus_per_rank > 0 && std::int64_t{launch.cpus_per_rank} * launch.ranks_per_node <= cpus,
          "{}: the job has {} logical CPUs there, and {} ranks are to have {} each: ask for more "
          "(--cpus-per-task, --exclusive), or start fewer ranks (--ntasks-per-node)",
          inventory.job.hosts.front(), cpus, launch.ranks_per_node, std::max(1, launch.cpus_per_rank));
  require(options.nodes <= inventory.job.nodes(), "--nodes {}: the job has {} ({})", options.nodes,
          inventory.job.nodes(), fmt::join(inventory.job.hosts, ", "));
  const std::vector<int> order = switch_order(inventory.job);
  const std::size_t nodes = options.nodes > 0 ? static_cast<std::size_t>(options.nodes) : order.size();
  std::vector<int> taken(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(nodes));
  // Without a host file the ranks come in Slurm's order.
  if (options.hostfile.empty()) std::ranges::sort(taken);
  launch.arbitrary = !std::ranges::is_sorted(taken);
  for (const int node : taken) launch.hosts.push_back(inventory.job.hosts[node]);
  launch.switches = leaves_above(inventory.job, taken);
  return launch;
}

}  // namespace

std::string launch_text(const TopologyOptions& options, const JobInventory& inventory,
                        const Variables& variables) {
  const Launch launch = plan_launch(options, inventory, variables);
  if (launch.arbitrary) {
    std::string lines;
    for (const std::string& host : launch.hosts) {
      for (int i = 0; i < launch.ranks_per_node; ++i) lines += host + "\n";
    }
    io::write_text_atomically(options.hostfile, lines);
  }
  std::string text;
  const auto line = [&](const char* name, const std::string& value, std::string_view why) {
    text += fmt::format("export {}={}  # {}\n", name, app::shell_word(value), why);
  };
  line("ANNULUS_NODES", fmt::to_string(launch.hosts.size()), "srun --nodes");
  line("ANNULUS_NODELIST", fmt::format("{}", fmt::join(launch.hosts, ",")),
       "srun --nodelist, in the order of the ranks");
  line("ANNULUS_SWITCHES", fmt::format("{}", fmt::join(launch.switches, ",")),
       launch.switches.empty() ? "not known" : "leaf switches above these nodes");
  line("ANNULUS_RANKS_PER_NODE", fmt::to_string(launch.ranks_per_node), "srun --ntasks-per-node");
  line("ANNULUS_ALL_RANKS",
       fmt::to_string(launch.hosts.size() * static_cast<std::size_t>(launch.ranks_per_node)),
       "srun --ntasks, mpirun -n");
  line("ANNULUS_CPUS_PER_RANK", fmt::to_string(launch.cpus_per_rank), "srun --cpus-per-task");
  line("ANNULUS_DISTRIBUTION", launch.arbitrary ? "arbitrary" : "block:block",
       launch.arbitrary ? "srun --distribution: nodes of one switch follow one another"
                        : "srun --distribution: ranks of one node are consecutive");
  line("ANNULUS_CPU_BIND", "none",
       "srun --cpu-bind: annulus-topology --exec binds, it knows which cores are near which GPU");
  if (launch.arbitrary)
    line("ANNULUS_HOSTFILE", std::filesystem::absolute(options.hostfile).string(),
         "the host of each rank: SLURM_HOSTFILE of this srun alone");
  return text;
}

}  // namespace annulus::topology_app
