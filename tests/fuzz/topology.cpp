// Files and lists that say where ranks are: "RANK HOST" lines (docs/topology.md), Slurm's variables, and what
// `scontrol show topology` prints. The first line says which: ranks, slurm or switches.
#include <map>
#include <set>
#include <string>

#include "cluster/topology/job.hpp"
#include "fuzz.hpp"

namespace {

using namespace annulus;

/// Questions that programs ask of a job.
void ask(const Job& job) {
  if (job.nodes() > 4096) return;  // fewer show the same, and these are slow
  for (int node = 0; node < job.nodes(); ++node) job.leaf(node);
  check_placement(job);
  const std::vector<int> order = switch_order(job);
  // A list of hosts may leave nodes of the job without ranks.
  const std::size_t used = std::set(job.node_of_rank.begin(), job.node_of_rank.end()).size();
  fuzz::expect(order.size() == (job.ranks() > 0 ? used : job.hosts.size()),
               "every node with ranks in the order");
  if (const auto topology = topology_of(job))
    fuzz::expect(topology->ranks() == job.ranks(), "every rank in the topology");
}

/// Lines KEY=VALUE as the variables of a process.
Variables variables_of(std::string_view text) {
  std::map<std::string, std::string> values;
  while (!text.empty()) {
    const std::string_view line = fuzz::take_line(text);
    const std::size_t equals = line.find('=');
    if (equals != line.npos) values.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  values.erase("SLURM_HOSTFILE");  // the name of any file of this machine
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  const std::string_view kind = fuzz::take_line(text);
  if (kind == "ranks") {
    Job job;
    if (fuzz::accepts("ranks.txt", [&] { job = job_of_ranks(text, "ranks.txt"); })) ask(job);
  } else if (kind == "slurm") {
    const Variables variables = variables_of(text);
    fuzz::accepts("", [&] { launched_rank(variables); });
    std::optional<Job> job;
    if (fuzz::accepts("", [&] { job = slurm_job(variables); }) && job) ask(*job);
  } else if (kind == "switches") {
    fuzz::accepts("", [&] { parse_switches(text); });
  }
  return 0;
}
