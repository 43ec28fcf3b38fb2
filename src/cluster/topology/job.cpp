#include "cluster/topology/job.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <sstream>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/parse_number.hpp"
#include "base/printable.hpp"

namespace annulus {
namespace {

/// Node of each rank when nodes are given one rank after the other (`plane` of them at a time), round robin.
std::vector<int> round_robin(std::vector<int> free, int plane) {
  std::vector<int> nodes, left(free.size());  // left: the nodes that are not full
  std::iota(left.begin(), left.end(), 0);
  while (!left.empty()) {
    for (const int node : left) {
      int& room = free[node];
      for (int i = 0; i < plane && room > 0; ++i, --room) nodes.push_back(node);
    }
    std::erase_if(left, [&](int node) { return free[node] == 0; });
  }
  return nodes;
}

std::vector<int> block(const std::vector<int>& counts) {
  std::vector<int> nodes;
  for (std::size_t node = 0; node < counts.size(); ++node)
    nodes.insert(nodes.end(), static_cast<std::size_t>(counts[node]), static_cast<int>(node));
  return nodes;
}

int index_of(const std::vector<std::string>& hosts, std::string_view host) {
  const auto found = std::ranges::find(hosts, host);
  return found == hosts.end() ? -1 : static_cast<int>(found - hosts.begin());
}

/// Rank by rank, the hosts of --distribution=arbitrary.
std::vector<int> arbitrary(const Variables& variables, const std::vector<std::string>& hosts,
                           std::size_t ranks) {
  std::vector<std::string> listed;
  if (const auto list = variables("SLURM_ARBITRARY_NODELIST")) {
    listed = expand_hosts(*list);
  } else if (const auto file = variables("SLURM_HOSTFILE")) {
    std::istringstream in(read_text(*file, kinds::hosts));
    for (std::string word; in >> word;) {
      for (std::string& host : expand_hosts(word)) listed.push_back(std::move(host));
    }
  }
  require(listed.size() >= ranks,
          "SLURM_DISTRIBUTION=arbitrary lists {} hosts for {} ranks: write one for each rank", listed.size(),
          ranks);
  std::map<std::string_view, int> node_of;
  for (std::size_t node = 0; node < hosts.size(); ++node)
    node_of.emplace(hosts[node], static_cast<int>(node));
  std::vector<int> nodes;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto node = node_of.find(listed[rank]);
    require(node != node_of.end(), "SLURM_HOSTFILE puts rank {} on {}, which is no node of the job", rank,
            listed[rank]);
    nodes.push_back(node->second);
  }
  return nodes;
}

std::vector<int> distribute(const Variables& variables, const std::vector<std::string>& hosts,
                            const std::vector<int>& counts) {
  const std::string all = variables("SLURM_DISTRIBUTION").value_or("block");
  const std::string kind = all.substr(0, all.find_first_of(":,"));
  if (kind == "cyclic") return round_robin(counts, 1);
  if (kind.starts_with("plane")) {
    const std::string size = kind.find('=') != kind.npos ? kind.substr(kind.find('=') + 1)
                                                         : variables("SLURM_DIST_PLANESIZE").value_or("1");
    std::string_view rest = size;
    return round_robin(counts, std::max(1, take_number<int>(rest).value_or(1)));
  }
  if (kind == "arbitrary")
    return arbitrary(variables, hosts, static_cast<std::size_t>(std::reduce(counts.begin(), counts.end())));
  return block(counts);
}

/// "spine.leaf1.n3" with the pattern "switch.switch.node": the switches of the node that Slurm tells it.
std::optional<LeafSwitch> own_leaf(const Variables& variables) {
  const auto address = variables("SLURM_TOPOLOGY_ADDR"), pattern = variables("SLURM_TOPOLOGY_ADDR_PATTERN");
  if (!address || !pattern || !pattern->ends_with("switch.node")) return std::nullopt;
  // Host names may have dots: the switches are as many as the pattern says.
  std::size_t end = 0;
  for (auto left = std::ranges::count(*pattern, '.'); left > 0; --left) {
    end = address->find('.', end == 0 ? 0 : end + 1);
    if (end == address->npos) return std::nullopt;
  }
  const std::string path = address->substr(0, end);
  return LeafSwitch{
      .name = path.substr(path.rfind('.') + 1), .path = path, .hosts = {address->substr(end + 1)}};
}

}  // namespace

Variables process_variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

int Job::leaf(int node) const {
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (index_of(leaves[i].hosts, hosts[node]) >= 0) return static_cast<int>(i);
  }
  return -1;
}

std::optional<Job> slurm_job(const Variables& variables) {
  const auto id = variables("SLURM_JOB_ID");
  if (!id) return std::nullopt;
  if (const auto components = variables("SLURM_HET_SIZE"); components && *components != "1")
    fail(
        "Slurm job {} is heterogeneous ({} components): its nodes differ, and the ranks of Annulus do equal "
        "work: submit one job of one node type (--constraint, --partition)",
        *id, *components);
  const bool step = variables("SLURM_STEP_NODELIST").has_value();
  const auto list = step ? variables("SLURM_STEP_NODELIST") : variables("SLURM_JOB_NODELIST");
  require(list.has_value(), "SLURM_JOB_ID is {}, but SLURM_JOB_NODELIST is not set: run inside of the job",
          *id);
  Job job{.source = "Slurm job " + printable(*id),
          .hosts = expand_hosts(*list),
          .node_of_rank = {},
          .leaves = {}};
  const char* const name = step ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (const auto text = variables(name)) {
    const std::vector<int> counts = expand_counts(*text, name);
    require(counts.size() == job.hosts.size(), "{}={} lists {} nodes, but the job has {} ({})", name, *text,
            counts.size(), job.hosts.size(), *list);
    job.node_of_rank = distribute(variables, job.hosts, counts);
  }
  if (const auto leaf = own_leaf(variables)) job.leaves = {*leaf};
  return job;
}

Job job_of_ranks(std::string_view text, std::string_view origin) {
  std::map<int, std::string> host_of;
  std::istringstream in{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::string_view rest = std::string_view(line).substr(line.find_first_not_of(" \t"));
    const auto rank = take_number<int>(rest);
    const std::size_t host = rest.find_first_not_of(": \t");
    require(rank && *rank >= 0 && host != rest.npos && host > 0, "{}:{}: '{}' is not 'RANK HOST'", origin,
            number, line.substr(0, 100));
    const std::string name = printable(rest.substr(host, rest.find_first_of(" \t\r", host) - host));
    require(host_of.emplace(*rank, name).second, "{}:{}: rank {} is there twice", origin, number, *rank);
  }
  require(!host_of.empty(), "{}: no line 'RANK HOST'", origin);
  require(host_of.rbegin()->first == static_cast<int>(host_of.size()) - 1,
          "{}: {} ranks, but the last is {}: some are missing", origin, host_of.size(),
          host_of.rbegin()->first);
  Job job{.source = std::string(origin), .hosts = {}, .node_of_rank = {}, .leaves = {}};
  std::map<std::string_view, int> node_of;
  for (const auto& [rank, host] : host_of) {
    const auto [node, is_new] = node_of.emplace(host, job.nodes());
    if (is_new) job.hosts.push_back(host);
    job.node_of_rank.push_back(node->second);
  }
  return job;
}

}  // namespace annulus
