#include "topology/inventory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/parse_number.hpp"
#include "base/printable.hpp"
#include "common/process.hpp"
#include "topology/described.hpp"

namespace annulus::topology_app {
namespace {

using machine::Machine;
using machine::NodeResources;
using machine::Profile;

/// What `scontrol show topology` prints; empty without scontrol, or where the cluster has no switches.
std::string ask_slurm_for_switches() {
  FILE* pipe = ::popen("scontrol show topology 2>/dev/null", "r");
  if (pipe == nullptr) return {};
  std::string text;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, count);
  return ::pclose(pipe) == 0 ? text : std::string();
}

int ranks_of_host(const Job& job, const std::string& host) {
  return static_cast<int>(
      std::ranges::count_if(job.node_of_rank, [&](int node) { return same_host(job.hosts[node], host); }));
}

/// Ranks that a node gets: --ranks-per-node, what the user asked Slurm for, the profile's, one a GPU, one a
/// NUMA node.
int ranks_on_node(const TopologyOptions& options, const Profile& profile, const Machine& machine,
                  const NodeResources& resources, const Variables& variables) {
  if (options.ranks_per_node > 0) return options.ranks_per_node;
  if (const int asked = positive_number(variables, "SLURM_NTASKS_PER_NODE"); asked > 0) return asked;
  if (variables("SLURM_NTASKS") && variables("SLURM_TASKS_PER_NODE")) {
    const std::vector<int> counts = expand_counts(*variables("SLURM_TASKS_PER_NODE"), "SLURM_TASKS_PER_NODE");
    if (!counts.empty() && counts.front() > 0) return counts.front();
  }
  if (profile.ranks_per_node > 0) return profile.ranks_per_node;
  if (const int given = positive_number(variables, "SLURM_GPUS_ON_NODE");
      given > 0 && resources.gpu_count > 0)
    return std::min(given, resources.gpu_count);
  if (resources.gpu_count > 0) return resources.gpu_count;
  return std::max(1, static_cast<int>(machine.numa.size()));
}

/// What decides about the ranks of a node.
struct NodeRequest {
  const TopologyOptions& options;
  const Profile& profile;
  const Variables& variables;
  int ranks = 0;                ///< 0: as ranks_on_node says
  bool here = false;            ///< the node is the one that this process runs on
  std::vector<int> bound = {};  ///< logical CPUs that the ranks may use; empty: all
};

Node make_node(Machine&& described, const NodeRequest& request) {
  const auto& [options, profile, variables, wanted, here, bound] = request;
  Node node{.machine = std::move(described), .resources = {}, .ranks = {}};
  node.resources = machine::node_resources(node.machine, profile);
  const int ranks =
      wanted == 0 ? ranks_on_node(options, profile, node.machine, node.resources, variables) : wanted;
  // Slurm's GPUs are those of this process; files are looked at as a whole.
  if (here)
    machine::restrict_gpus(node.machine, variables("CUDA_VISIBLE_DEVICES").value_or(""),
                           positive_number(variables, "SLURM_GPUS_ON_NODE"), ranks, node.resources);
  node.ranks = machine::assign_ranks(node.machine, node.resources, ranks, bound);
  return node;
}

/// Diagnostics, of which those that several nodes share become one.
std::vector<Diagnostic> grouped(const std::vector<Diagnostic>& list, const std::vector<Node>& nodes) {
  std::vector<Diagnostic> result;
  std::vector<int> times;
  const auto rest_of = [&](const Diagnostic& diagnostic) {
    for (const Node& node : nodes) {
      if (diagnostic.text.starts_with(node.machine.host + ": "))
        return diagnostic.text.substr(node.machine.host.size());
    }
    return diagnostic.text;
  };
  for (const Diagnostic& diagnostic : list) {
    const auto same = std::ranges::find_if(
        result, [&](const Diagnostic& other) { return rest_of(other) == rest_of(diagnostic); });
    if (same == result.end()) {
      result.push_back(diagnostic);
      times.push_back(0);
    } else {
      ++times[same - result.begin()];
    }
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::string rest = rest_of(result[i]);
    if (times[i] > 0)
      result[i].text =
          fmt::format("{} and {} other {}{}", result[i].text.substr(0, result[i].text.size() - rest.size()),
                      times[i], times[i] == 1 ? "node" : "nodes", rest);
  }
  return result;
}

/// Without a job: the described nodes one after the other.
Job job_of(const std::vector<Node>& nodes) {
  Job job{.source = nodes.size() == 1 ? "this node alone" : "these nodes",
          .hosts = {},
          .node_of_rank = {},
          .leaves = {}};
  for (const Node& node : nodes) {
    job.node_of_rank.insert(job.node_of_rank.end(), node.ranks.size(), job.nodes());
    job.hosts.push_back(node.machine.host);
  }
  return job;
}

/// The job's ranks when none were asked of Slurm: those of the profile, node after node.
void fill_ranks(Job& job, const TopologyOptions& options, const std::vector<Node>& nodes,
                const Variables& variables) {
  const bool asked = variables("SLURM_STEP_NODELIST") || variables("SLURM_NTASKS");
  if (!options.ranks_file.empty() || (asked && options.ranks_per_node == 0)) return;
  job.node_of_rank.clear();
  for (int node = 0; node < job.nodes(); ++node)
    job.node_of_rank.insert(job.node_of_rank.end(), nodes.front().ranks.size(), node);
}

/// The job: of --ranks, else of Slurm, else nothing; with its switches.
std::optional<Job> find_job(const TopologyOptions& options, const Variables& variables) {
  std::optional<Job> job;
  if (!options.ranks_file.empty()) {
    const bool piped = options.ranks_file == "-";
    job =
        job_of_ranks(piped ? read_standard_input(kinds::hosts) : read_text(options.ranks_file, kinds::hosts),
                     piped ? "stdin" : options.ranks_file);
  } else {
    job = slurm_job(variables);
  }
  require(job || options.switches.empty(),
          "--switches {}: there is no job whose nodes have switches above them: give --ranks, too",
          options.switches);
  if (!job) return job;
  std::string switches;
  if (!options.switches.empty()) {
    switches = read_text(options.switches, kinds::hosts);
    require(!parse_switches(switches).empty(),
            "--switches {}: no line 'SwitchName=… Nodes=…', "
            "which 'scontrol show topology' prints",
            options.switches);
  } else if (variables("SLURM_JOB_ID")) {
    switches = ask_slurm_for_switches();
  }
  if (!switches.empty()) job->leaves = parse_switches(switches);
  return job;
}

/// Index of the only GPU that the driver shows where Slurm gave each rank one of its own (cgroups); else −1.
/// The others are then counted among the node's again, so that each rank gets its place.
int only_gpu(Machine& machine, int local_ranks) {
  const auto shown = [](const machine::Gpu& gpu) { return gpu.ordinal >= 0; };
  if (local_ranks < 2 || std::ssize(machine.gpus) != local_ranks ||
      std::ranges::count_if(machine.gpus, shown) != 1)
    return -1;
  const auto own = std::ranges::find_if(machine.gpus, shown) - machine.gpus.begin();
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) machine.gpus[i].ordinal = static_cast<int>(i);
  return static_cast<int>(own);
}

}  // namespace

const machine::Nic* Node::nic(int index) const {
  return index < 0 ? nullptr : &resources.nic(machine, index);
}

Profile profile_of(const TopologyOptions& options) {
  return options.profile.empty() ? Profile{} : machine::read_profile(options.profile);
}

std::string this_host(const Machine& machine, const Variables& variables) {
  return printable(variables("SLURMD_NODENAME").value_or(machine.host));
}

JobInventory take_inventory(const TopologyOptions& options, const Variables& variables) {
  JobInventory inventory{.profile = profile_of(options), .job = {}, .nodes = {}, .diagnostics = {}};
  const std::optional<Job> job = find_job(options, variables);
  const bool here = options.xml.empty() && options.from.empty();
  std::vector<Machine> machines;
  if (here) {
    machines.push_back(machine::describe_this_machine().machine);
    machines.back().host = this_host(machines.back(), variables);
  } else {
    machines = options.from.empty() ? read_files(options.xml) : read_folder(options.from);
    if (job) machines = in_job_order(std::move(machines), *job, options.from);
  }
  const std::vector<Diagnostic> differ = machine::check_alike(machines);
  for (Machine& described : machines) {
    const int ranks =
        options.ranks_per_node == 0 && !options.ranks_file.empty() ? ranks_of_host(*job, described.host) : 0;
    inventory.nodes.push_back(make_node(std::move(described), {.options = options,
                                                               .profile = inventory.profile,
                                                               .variables = variables,
                                                               .ranks = ranks,
                                                               .here = here}));
  }
  inventory.job = job ? *job : job_of(inventory.nodes);
  if (job) fill_ranks(inventory.job, options, inventory.nodes, variables);

  std::vector<Diagnostic> of_nodes;
  const auto add = [](std::vector<Diagnostic>& to, const std::vector<Diagnostic>& list) {
    to.insert(to.end(), list.begin(), list.end());
  };
  for (const Node& node : inventory.nodes) {
    add(of_nodes, node.resources.diagnostics);
    add(of_nodes, machine::check_ranks(node.machine, node.resources, node.ranks));
  }
  add(inventory.diagnostics, differ);
  // A launch with a host file puts each rank where it belongs, whatever Slurm's own order is.
  if (options.hostfile.empty()) add(inventory.diagnostics, check_placement(inventory.job));
  add(inventory.diagnostics, grouped(of_nodes, inventory.nodes));
  return inventory;
}

RankInventory take_rank_inventory(const TopologyOptions& options, const Variables& variables) {
  const auto launched = launched_rank(variables);
  require(options.local_rank >= 0 || launched,
          "which rank this is, is not known: no launcher (srun, mpirun) has started it; give --local-rank "
          "and --local-ranks");
  const int local_rank = options.local_rank >= 0 ? options.local_rank : launched->local_rank;
  const int local_ranks = options.local_rank >= 0 ? options.local_ranks : launched->local_ranks;
  require(options.from.empty() && options.xml.size() <= 1,
          "one rank is of one node: give one --xml file, or none");
  const bool here = options.xml.empty();
  Machine described = here ? machine::describe_this_machine().machine : read_files(options.xml).front();
  if (here) described.host = this_host(described, variables);

  const std::vector<int> bound = here ? machine::bound_cpus() : std::vector<int>();
  const std::string type = here ? variables("SLURM_CPU_BIND_TYPE").value_or("") : "";
  const bool by_slurm = !type.empty() && !type.starts_with("none");
  // mpirun binds ranks to sockets by default, where several of them would share the cores: then they are
  // bound anew.
  const bool by_mpirun = here && variables("OMPI_MCA_orte_bound_at_launch").has_value();
  const bool own = by_mpirun && std::ssize(bound) * local_ranks <= described.hardware_threads();

  RankInventory inventory{.profile = profile_of(options), .node = {}, .binding = {}, .diagnostics = {}};
  const bool launcher = by_slurm || by_mpirun;
  const int own_gpu = only_gpu(described, local_ranks);
  inventory.node = make_node(std::move(described), {.options = options,
                                                    .profile = inventory.profile,
                                                    .variables = variables,
                                                    .ranks = local_ranks,
                                                    .here = here,
                                                    .bound = launcher ? std::vector<int>() : bound});
  inventory.binding = inventory.node.ranks[own_gpu < 0 ? local_rank : own_gpu];
  inventory.binding.local_rank = local_rank;
  inventory.bound = by_slurm || own;
  if (inventory.bound) machine::keep_binding(inventory.node.machine, bound, inventory.binding);
  inventory.speaks = !launched || launched->rank == 0;
  inventory.diagnostics = inventory.node.resources.diagnostics;
  for (Diagnostic& diagnostic :
       machine::check_ranks(inventory.node.machine, inventory.node.resources, inventory.node.ranks))
    inventory.diagnostics.push_back(std::move(diagnostic));
  return inventory;
}

int positive_number(const Variables& variables, const char* name) {
  return std::max(0, parse_number<int>(variables(name).value_or("")).value_or(0));
}

void report(const std::vector<Diagnostic>& diagnostics, bool strict) {
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!diagnostic.error && !strict) app::say("annulus-topology: warning: " + diagnostic.text);
  }
  std::vector<std::string> errors;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (diagnostic.error || strict) errors.push_back(diagnostic.text);
  }
  require(errors.empty(), "{}", fmt::join(errors, "\nannulus-topology: "));
}

}  // namespace annulus::topology_app
