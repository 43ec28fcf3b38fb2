#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/cluster/topology/topology.hpp>

namespace annulus {

/// What is wrong with a machine or a placement. The text reads "what is wrong: what to do".
struct Diagnostic {
  bool error = false;  ///< nothing can run well like this; else a warning
  std::string text;
  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};

/// Looks up an environment variable; nothing for one that is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

/// The variables of this process.
Variables process_variables();

/// A leaf of the network: a switch that nodes are plugged into.
struct LeafSwitch {
  std::string name;
  std::string path;  ///< the switches above it and itself, from the top: "spine.leaf1"
  std::vector<std::string> hosts;
};

/// The nodes of a job, and which rank is where.
struct Job {
  std::string source;              ///< "Slurm job 17"
  std::vector<std::string> hosts;  ///< in the order of the job
  std::vector<int> node_of_rank;   ///< index into hosts; empty where no ranks are known
  std::vector<LeafSwitch> leaves;  ///< empty: switches are not known

  int nodes() const { return static_cast<int>(hosts.size()); }
  int ranks() const { return static_cast<int>(node_of_rank.size()); }

  /// Index of a node's leaf switch; −1: not known.
  int leaf(int node) const;
};

/// This process among the ranks that its launcher started.
struct LaunchedRank {
  int rank = 0;
  int local_rank = 0;   ///< among those of its node
  int local_ranks = 1;  ///< of its node
};

/// What mpirun (Open MPI, MPICH's and Intel's) or srun say; nothing for a process that none of them started.
std::optional<LaunchedRank> launched_rank(const Variables& variables);

/// Several processes that one launcher has started as the ranks of one job.
struct SeveralRanks {
  int rank = 0;          ///< of this process
  std::string launcher;  ///< "mpiexec of MPICH or Intel MPI"
  std::string evidence;  ///< "PMI_SIZE=2"
  bool all_know = true;  ///< rank 0 finds this out, too
};

/// Whether the launcher of this very process has started several. Nothing for a process that was started
/// directly, also inside of an allocation, in its batch script or salloc's shell, or as a single rank. Throws
/// Error that names the variable.
std::optional<SeveralRanks> several_ranks(const Variables& variables);

/// "n[1-3,08],login" as n1, n2, n3, n08, login: the lists of hosts that Slurm writes. Throws Error.
std::vector<std::string> expand_hosts(std::string_view list);

/// "4(x2),3" as 4, 4, 3: the counts that Slurm writes. `name` stands for the variable. Throws Error.
std::vector<int> expand_counts(std::string_view list, std::string_view name);

/// Leaf switches of the text that `scontrol show topology` prints.
std::vector<LeafSwitch> parse_switches(std::string_view text);

/// The job that Slurm's variables describe; in a step (srun) the step. Nothing outside of Slurm. Throws Error
/// that names the variable, and for heterogeneous jobs.
std::optional<Job> slurm_job(const Variables& variables);

/// Ranks line by line, "RANK HOST" or "RANK: HOST" (`srun -l hostname`), in any order; hosts are numbered in
/// the order of the ranks. `origin` stands for the text in messages. Throws Error.
Job job_of_ranks(std::string_view text, std::string_view origin);

/// What is wrong with where the ranks are: those of a node not consecutive, nodes with different numbers of
/// ranks, nodes of one switch not next to each other.
std::vector<Diagnostic> check_placement(const Job& job);

/// Nodes in an order that goes through each switch once: by the first node of the job on it.
std::vector<int> switch_order(const Job& job);

/// Ranks of the nodes, or nothing when the ranks of a node are not consecutive.
std::optional<Topology> topology_of(const Job& job);

}  // namespace annulus
