#include "cluster/machine/placement.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"

namespace annulus::machine {
namespace {

/// Cores that ranks may use: allowed by the cgroup and, where CPUs are given, with one of them.
std::vector<int> usable_cores(const Machine& machine, const std::vector<int>& bound) {
  std::vector<int> usable;
  for (std::size_t i = 0; i < machine.cores.size(); ++i) {
    const Core& core = machine.cores[i];
    const bool in_bound = bound.empty() || std::any_of(core.cpus.begin(), core.cpus.end(), [&](int cpu) {
                            return std::find(bound.begin(), bound.end(), cpu) != bound.end();
                          });
    if (core.allowed && in_bound) usable.push_back(static_cast<int>(i));
  }
  return usable;
}

/// Share `index` of `count` equal ones; the first shares have one more where it does not divide.
std::vector<int> share(const std::vector<int>& list, std::size_t index, std::size_t count) {
  const auto begin = [&](std::size_t i) {
    return i * (list.size() / count) + std::min(i, list.size() % count);
  };
  return {list.begin() + static_cast<std::ptrdiff_t>(begin(index)),
          list.begin() + static_cast<std::ptrdiff_t>(begin(index + 1))};
}

/// Divides cores among some ranks; with fewer cores than ranks each rank gets one that others use too.
void divide(const std::vector<int>& cores, const std::vector<RankBinding*>& ranks) {
  for (std::size_t i = 0; i < ranks.size() && !cores.empty(); ++i) {
    ranks[i]->shared = cores.size() < ranks.size();
    ranks[i]->cores =
        ranks[i]->shared ? std::vector<int>{cores[i % cores.size()]} : share(cores, i, ranks.size());
  }
}

void place_memory(const Machine& machine, RankBinding& rank) {
  std::set<int> numa;
  for (const int core : rank.cores) numa.insert(machine.cores[core].numa);
  rank.numa.assign(numa.begin(), numa.end());
}

void place_cores(const Machine& machine, const std::vector<int>& usable, std::vector<RankBinding>& ranks) {
  // Ranks whose GPUs have the same nearest cores divide these; an empty list stands for all cores.
  std::map<std::vector<int>, std::vector<RankBinding*>> groups;
  for (RankBinding& rank : ranks) {
    std::vector<int> near;
    if (rank.gpu >= 0) {
      for (const int core : machine.gpus[rank.gpu].locality.cores) {
        if (std::binary_search(usable.begin(), usable.end(), core)) near.push_back(core);
      }
    }
    groups[near].push_back(&rank);
  }
  // A group without cores of its own, or too few of them, would take those of another: then all divide all.
  const bool divisible =
      groups.size() == 1 || std::all_of(groups.begin(), groups.end(), [](const auto& group) {
        return !group.first.empty() && group.first.size() >= group.second.size();
      });
  std::set<int> seen;
  std::size_t sum = 0;
  for (const auto& [cores, of] : groups) {
    seen.insert(cores.begin(), cores.end());
    sum += cores.size();
  }
  if (divisible && seen.size() == sum) {
    for (const auto& [cores, of] : groups) divide(cores.empty() ? usable : cores, of);
  } else {
    std::vector<RankBinding*> all;
    for (RankBinding& rank : ranks) all.push_back(&rank);
    divide(usable, all);
  }
  for (RankBinding& rank : ranks) place_memory(machine, rank);
}

/// How near a NIC is to a rank: to its GPU, else to the nearest of its cores.
PathType path_of(const Machine& machine, const NodeResources& resources, const RankBinding& rank,
                 std::size_t index) {
  const auto nic = static_cast<std::size_t>(resources.nics[index]);
  if (rank.gpu >= 0) return machine.paths[rank.gpu][nic];
  const DeviceLocality& locality = machine.nics[nic].locality;
  if (rank.cores.empty() || (locality.numa < 0 && locality.socket < 0)) return PathType::socket;  // not known
  PathType nearest = PathType::system;
  for (const int index : rank.cores) {
    const Core& core = machine.cores[index];
    if (core.numa == locality.numa) return PathType::numa;
    if (core.socket == locality.socket) nearest = PathType::socket;
  }
  return nearest;
}

/// The NIC of a rank without a GPU: the nearest, of equally near ones the least used.
void place_rail(const Machine& machine, const NodeResources& resources, std::vector<int>& load,
                RankBinding& rank) {
  for (std::size_t i = 0; i < resources.nics.size(); ++i) {
    const PathType path = path_of(machine, resources, rank, i);
    const bool better = rank.nic < 0 || path < rank.path || (path == rank.path && load[i] < load[rank.nic]);
    if (!better) continue;
    rank.nic = static_cast<int>(i);
    rank.path = path;
  }
  if (rank.nic >= 0) ++load[rank.nic];
}

/// Gives each rank, beside its nearest NIC, an equal share of those that no rank has yet and that are as
/// near.
void share_nics(const Machine& machine, const NodeResources& resources, std::vector<RankBinding>& ranks) {
  std::vector<bool> taken(resources.nics.size(), false);
  for (RankBinding& rank : ranks) {
    if (rank.nic < 0) return;
    rank.nics = {rank.nic};
    taken[rank.nic] = true;
  }
  for (std::size_t most = 2; most <= resources.nics.size() / ranks.size(); ++most) {
    for (RankBinding& rank : ranks) {
      for (std::size_t i = 0; i < resources.nics.size() && rank.nics.size() < most; ++i) {
        if (taken[i] || path_of(machine, resources, rank, i) > rank.path) continue;
        rank.nics.push_back(static_cast<int>(i));
        taken[i] = true;
      }
    }
  }
}

}  // namespace

std::vector<RankBinding> assign_ranks(const Machine& machine, const NodeResources& resources, int local_ranks,
                                      const std::vector<int>& bound) {
  require(local_ranks >= 1, "{}: {} ranks on a node: give at least one", machine.host, local_ranks);
  constexpr int most = 4096;  // more is a slip of the hand, told before memory runs out
  require(local_ranks <= most, "{}: {} ranks on a node: give at most {}", machine.host, local_ranks, most);
  std::vector<RankBinding> ranks(static_cast<std::size_t>(local_ranks));
  for (int i = 0; i < local_ranks; ++i) {
    RankBinding& rank = ranks[i];
    rank.local_rank = i;
    rank.local_ranks = local_ranks;
    if (local_ranks <= std::ssize(resources.gpus)) rank.gpu = resources.gpus[i];
  }
  place_cores(machine, usable_cores(machine, bound), ranks);
  std::vector<int> load(resources.nics.size(), 0);
  for (RankBinding& rank : ranks) {
    if (rank.gpu < 0 || resources.nic_of.empty()) {
      place_rail(machine, resources, load, rank);
    } else {
      rank.nic = resources.nic_of[rank.local_rank];
      rank.path = path_of(machine, resources, rank, static_cast<std::size_t>(rank.nic));
    }
  }
  share_nics(machine, resources, ranks);
  return ranks;
}

void keep_binding(const Machine& machine, const std::vector<int>& bound, RankBinding& rank) {
  rank.cores = usable_cores(machine, bound);
  rank.shared = false;
  place_memory(machine, rank);
}

void restrict_gpus(const Machine& machine, std::string_view visible, int given, int local_ranks,
                   NodeResources& resources) {
  if (resources.gpu_count == 0) return;
  if (given > 0) resources.gpu_count = std::min(resources.gpu_count, given);
  std::vector<int> shown;
  for (std::size_t at = 0; at < visible.size();) {
    const std::size_t end = std::min(visible.find(',', at), visible.size());
    const auto ordinal = parse_number<int>(visible.substr(at, end - at));
    if (!ordinal) return;  // names of GPUs: the driver's business
    const auto has_ordinal = [&](int gpu) { return machine.gpus[gpu].ordinal == *ordinal; };
    const auto found = std::find_if(resources.gpus.begin(), resources.gpus.end(), has_ordinal);
    if (found != resources.gpus.end()) shown.push_back(*found);
    at = end + 1;
  }
  if (resources.gpus.empty() || shown.empty() || std::ssize(shown) < local_ranks) return;
  std::vector<int> nics;
  for (const int gpu : shown) {
    const auto index = std::find(resources.gpus.begin(), resources.gpus.end(), gpu) - resources.gpus.begin();
    if (!resources.nic_of.empty()) nics.push_back(resources.nic_of[index]);
  }
  resources.gpus = shown;
  resources.nic_of = nics;
  resources.gpu_count = static_cast<int>(shown.size());
}

std::vector<int> cpus_of(const Machine& machine, const RankBinding& rank) {
  std::vector<int> cpus;
  for (const int core : rank.cores) {
    const auto& of_core = machine.cores[core].cpus;
    cpus.insert(cpus.end(), of_core.begin(), of_core.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

std::vector<int> memory_of(const Machine& machine, const RankBinding& rank) {
  std::vector<int> nodes;
  for (const int index : rank.numa) nodes.push_back(machine.numa[index].os_index);
  return nodes;
}

}  // namespace annulus::machine
