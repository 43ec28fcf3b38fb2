#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cluster/machine/placement.hpp"
#include "cluster/machine/text.hpp"

namespace annulus::machine {
namespace {

std::string plural(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

void check_cards(const Machine& machine, const NodeResources& resources,
                 const std::vector<RankBinding>& ranks, NodeCheck& check) {
  std::map<int, std::vector<int>> far, of_nic;  // by NIC
  for (const RankBinding& rank : ranks) {
    if (rank.nic < 0) continue;
    of_nic[rank.nic].push_back(rank.local_rank);
    if (rank.path == PathType::system) far[rank.nic].push_back(rank.local_rank);
  }
  for (const auto& [index, local] : far) {
    check.warning(
        "local {} {} the nearest NIC, {}, only across the sockets: their messages share the link "
        "between them; use fewer ranks of the near socket, or a node type with a NIC on each",
        plural(local), local.size() == 1 ? "reaches" : "reach", resources.nic(machine, index).name());
  }
  if (resources.nics.size() >= ranks.size() || resources.nics.empty()) return;
  std::vector<std::string> shares;
  for (const auto& [index, local] : of_nic)
    shares.push_back(fmt::format("{} by {}", resources.nic(machine, index).name(), plural(local)));
  check.warning(
      "{} for {} ranks: between nodes each rank has a share of a NIC ({}); schedules that know of "
      "nodes (topology-burst) send less there",
      resources.nics.size() == 1 ? "1 NIC" : fmt::format("{} NICs", resources.nics.size()), ranks.size(),
      fmt::join(shares, "; "));
}

void check_cores(const Machine& machine, const std::vector<RankBinding>& ranks, NodeCheck& check) {
  std::vector<int> shared, far;
  for (const RankBinding& rank : ranks) {
    if (rank.shared || rank.cores.empty()) shared.push_back(rank.local_rank);
    if (rank.gpu < 0 || rank.cores.empty()) continue;
    const auto& near = machine.gpus[rank.gpu].locality.cores;
    const bool is_near = near.empty() || std::ranges::all_of(rank.cores, [&](int core) {
                           return std::ranges::binary_search(near, core);
                         });
    if (!is_near) far.push_back(rank.local_rank);
  }
  if (!shared.empty())
    check.warning(
        "fewer cores than ranks are allowed: local {} share theirs; "
        "ask for more (--cpus-per-task, --exclusive)",
        plural(shared));
  if (!far.empty())
    check.warning(
        "the cores that the job was given are not those next to the GPUs of local {}: ask for whole "
        "nodes (--exclusive), or for cores beside the GPUs (--gres-flags=enforce-binding)",
        plural(far));
}

/// What is to be equal on all nodes, in words.
std::vector<std::pair<std::string, std::string>> traits(const Machine& machine) {
  std::vector<std::string> gpus, nics;
  for (const Gpu& gpu : machine.gpus) gpus.push_back(gpu.name);
  for (const Nic& nic : machine.nics) {
    if (nic.device.empty()) continue;  // plain interfaces differ without harm
    nics.push_back(fmt::format("{} ({})", nic.device, bits_text(nic.rate)));
  }
  const auto list = [](const std::vector<std::string>& names) {
    const bool alike = std::ranges::all_of(names, [&](const auto& n) { return n == names.front(); });
    if (names.empty()) return std::string("none");
    return alike ? fmt::format("{} × {}", names.size(), names.front())
                 : fmt::format("{}", fmt::join(names, ", "));
  };
  return {{"GPUs", list(gpus)},
          {"RDMA NICs", list(nics)},
          {"processor", machine.processor},
          {"sockets", fmt::to_string(machine.sockets)},
          {"NUMA nodes", fmt::to_string(machine.numa.size())},
          {"cores", fmt::to_string(machine.cores.size())}};
}

void check_software(const Machine& first, const Machine& other, std::vector<Diagnostic>& diagnostics) {
  for (const auto& [name, version] : first.software) {
    const auto found = other.software.find(name);
    const std::string there = found == other.software.end() ? "none" : found->second;
    if (there == version) continue;
    // Drivers of different versions work together, as a rule.
    diagnostics.push_back(
        {.error = name != "driver",
         .text = fmt::format("nodes differ: {} has {} {}, and {} has {}: install one version on all, load "
                             "the same modules, or leave the node out (--exclude={})",
                             first.host, name, version, other.host, there, other.host)});
  }
  constexpr double most_seconds = 30;  // descriptions of one job step are seconds apart
  const double apart = other.clock - first.clock;
  if (first.clock > 0 && other.clock > 0 && std::abs(apart) > most_seconds)
    diagnostics.push_back(
        {.text = fmt::format(
             "{} and {} were described {:.0f} s apart: their clocks differ (have the time service looked "
             "at), or the descriptions are of different job steps (write them again)",
             first.host, other.host, std::abs(apart))});
}

}  // namespace

std::vector<Diagnostic> check_ranks(const Machine& machine, const NodeResources& resources,
                                    const std::vector<RankBinding>& ranks) {
  std::vector<Diagnostic> diagnostics;
  NodeCheck check(machine, diagnostics);
  const int count = static_cast<int>(ranks.size());
  if (resources.gpu_count > 0 && resources.gpu_count < count)
    check.warning(
        "{} ranks for {} GPUs: a rank on a GPU needs one of its own; start {} "
        "(--ntasks-per-node={}) or ask for more GPUs (--gpus-per-node)",
        count, resources.gpu_count, resources.gpu_count, resources.gpu_count);
  if (resources.gpu_count > count)
    check.warning("{} of {} GPUs stay idle: start a rank for each (--ntasks-per-node={})",
                  resources.gpu_count - count, resources.gpu_count, resources.gpu_count);
  check_cards(machine, resources, ranks, check);
  check_cores(machine, ranks, check);
  return diagnostics;
}

std::vector<Diagnostic> check_alike(const std::vector<Machine>& nodes) {
  std::vector<Diagnostic> diagnostics;
  for (std::size_t node = 1; node < nodes.size(); ++node) {
    const auto first = traits(nodes[0]), other = traits(nodes[node]);
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (first[i].second == other[i].second) continue;
      diagnostics.push_back(
          {.error = true,
           .text = fmt::format("nodes differ: {} has {}: {}, and {} has {}; ranks do equal work: ask for one "
                               "node type (--constraint, --partition, --exclude={})",
                               nodes[0].host, first[i].first, first[i].second, nodes[node].host,
                               other[i].second, nodes[node].host)});
      break;  // the first difference of a node explains the others
    }
    check_software(nodes[0], nodes[node], diagnostics);
  }
  return diagnostics;
}

}  // namespace annulus::machine
