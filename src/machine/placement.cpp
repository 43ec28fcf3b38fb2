#include <annulus/machine/placement.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <set>

#include <annulus/base/error.hpp>

namespace annulus::machine {
namespace {

/// Cores that ranks may use: allowed by the cgroup and, where processors are given, with one of them.
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
void divide(const std::vector<int>& cores, const std::vector<RankPlace*>& ranks) {
  for (std::size_t i = 0; i < ranks.size() && !cores.empty(); ++i) {
    ranks[i]->shared = cores.size() < ranks.size();
    ranks[i]->cores =
        ranks[i]->shared ? std::vector<int>{cores[i % cores.size()]} : share(cores, i, ranks.size());
  }
}

void place_memory(const Machine& machine, RankPlace& rank) {
  std::set<int> numa;
  for (const int core : rank.cores) numa.insert(machine.cores[static_cast<std::size_t>(core)].numa);
  rank.numa.assign(numa.begin(), numa.end());
}

void place_cores(const Machine& machine, const std::vector<int>& usable, std::vector<RankPlace>& ranks) {
  // Ranks whose GPUs have the same nearest cores divide these; an empty list stands for all cores.
  std::map<std::vector<int>, std::vector<RankPlace*>> groups;
  for (RankPlace& rank : ranks) {
    std::vector<int> near;
    if (rank.gpu >= 0) {
      for (const int core : machine.gpus[static_cast<std::size_t>(rank.gpu)].place.cores) {
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
    std::vector<RankPlace*> all;
    for (RankPlace& rank : ranks) all.push_back(&rank);
    divide(usable, all);
  }
  for (RankPlace& rank : ranks) place_memory(machine, rank);
}

/// How near a card is to a rank: to its GPU, else to the nearest of its cores.
Reach reach_of(const Machine& machine, const Parts& parts, const RankPlace& rank, std::size_t rail) {
  const auto nic = static_cast<std::size_t>(parts.rails[rail]);
  if (rank.gpu >= 0) return machine.reach[static_cast<std::size_t>(rank.gpu)][nic];
  const Place& place = machine.nics[nic].place;
  if (rank.cores.empty() || (place.numa < 0 && place.socket < 0)) return Reach::socket;  // not known
  Reach nearest = Reach::system;
  for (const int index : rank.cores) {
    const Core& core = machine.cores[static_cast<std::size_t>(index)];
    if (core.numa == place.numa) return Reach::numa;
    if (core.socket == place.socket) nearest = Reach::socket;
  }
  return nearest;
}

/// The card of a rank without a GPU: the nearest, of equally near ones the least used.
void place_rail(const Machine& machine, const Parts& parts, std::vector<int>& load, RankPlace& rank) {
  for (std::size_t i = 0; i < parts.rails.size(); ++i) {
    const Reach reach = reach_of(machine, parts, rank, i);
    const bool better = rank.rail < 0 || reach < rank.reach ||
                        (reach == rank.reach && load[i] < load[static_cast<std::size_t>(rank.rail)]);
    if (!better) continue;
    rank.rail = static_cast<int>(i);
    rank.reach = reach;
  }
  if (rank.rail >= 0) ++load[static_cast<std::size_t>(rank.rail)];
}

/// Gives each rank, beside its nearest card, an equal share of those that no rank has yet and that are as
/// near.
void share_rails(const Machine& machine, const Parts& parts, std::vector<RankPlace>& ranks) {
  std::vector<bool> taken(parts.rails.size(), false);
  for (RankPlace& rank : ranks) {
    if (rank.rail < 0) return;
    rank.rails = {rank.rail};
    taken[static_cast<std::size_t>(rank.rail)] = true;
  }
  for (std::size_t most = 2; most <= parts.rails.size() / ranks.size(); ++most) {
    for (RankPlace& rank : ranks) {
      for (std::size_t i = 0; i < parts.rails.size() && rank.rails.size() < most; ++i) {
        if (taken[i] || reach_of(machine, parts, rank, i) > rank.reach) continue;
        rank.rails.push_back(static_cast<int>(i));
        taken[i] = true;
      }
    }
  }
}

}  // namespace

std::vector<RankPlace> place_ranks(const Machine& machine, const Parts& parts, int local_ranks,
                                   const std::vector<int>& bound) {
  require(local_ranks >= 1, "{}: {} ranks on a node: give at least one", machine.host, local_ranks);
  std::vector<RankPlace> ranks(static_cast<std::size_t>(local_ranks));
  for (int i = 0; i < local_ranks; ++i) {
    RankPlace& rank = ranks[static_cast<std::size_t>(i)];
    rank.local_rank = i;
    rank.local_ranks = local_ranks;
    if (local_ranks <= std::ssize(parts.gpus)) rank.gpu = parts.gpus[static_cast<std::size_t>(i)];
  }
  place_cores(machine, usable_cores(machine, bound), ranks);
  std::vector<int> load(parts.rails.size(), 0);
  for (RankPlace& rank : ranks) {
    if (rank.gpu < 0 || parts.rail_of.empty()) {
      place_rail(machine, parts, load, rank);
    } else {
      rank.rail = parts.rail_of[static_cast<std::size_t>(rank.local_rank)];
      rank.reach = reach_of(machine, parts, rank, static_cast<std::size_t>(rank.rail));
    }
  }
  share_rails(machine, parts, ranks);
  return ranks;
}

void keep_binding(const Machine& machine, const std::vector<int>& bound, RankPlace& rank) {
  rank.cores = usable_cores(machine, bound);
  rank.shared = false;
  place_memory(machine, rank);
}

void restrict_gpus(const Machine& machine, std::string_view visible, int given, int local_ranks,
                   Parts& parts) {
  if (parts.gpu_count == 0) return;
  if (given > 0) parts.gpu_count = std::min(parts.gpu_count, given);
  std::vector<int> shown;
  for (std::size_t at = 0; at < visible.size();) {
    const std::size_t end = std::min(visible.find(',', at), visible.size());
    int ordinal = -1;
    const auto [last, code] = std::from_chars(visible.data() + at, visible.data() + end, ordinal);
    if (code != std::errc() || last != visible.data() + end) return;  // names of GPUs: the driver's business
    const auto has_ordinal = [&](int gpu) {
      return machine.gpus[static_cast<std::size_t>(gpu)].ordinal == ordinal;
    };
    const auto found = std::find_if(parts.gpus.begin(), parts.gpus.end(), has_ordinal);
    if (found != parts.gpus.end()) shown.push_back(*found);
    at = end + 1;
  }
  if (parts.gpus.empty() || shown.empty() || std::ssize(shown) < local_ranks) return;
  std::vector<int> rails;
  for (const int gpu : shown) {
    const auto index = std::find(parts.gpus.begin(), parts.gpus.end(), gpu) - parts.gpus.begin();
    if (!parts.rail_of.empty()) rails.push_back(parts.rail_of[static_cast<std::size_t>(index)]);
  }
  parts.gpus = shown;
  parts.rail_of = rails;
  parts.gpu_count = static_cast<int>(shown.size());
}

std::vector<int> cpus_of(const Machine& machine, const RankPlace& rank) {
  std::vector<int> cpus;
  for (const int core : rank.cores) {
    const auto& of_core = machine.cores[static_cast<std::size_t>(core)].cpus;
    cpus.insert(cpus.end(), of_core.begin(), of_core.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace annulus::machine
