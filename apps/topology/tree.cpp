#include "topology/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>

#include "cluster/machine/text.hpp"

namespace annulus::topology_app {
namespace {

using machine::Gpu;
using machine::Machine;
using machine::Nic;

std::string counted(std::ptrdiff_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string gpu_line(const Machine& node, std::size_t index) {
  const Gpu& gpu = node.gpus[index];
  std::string text = fmt::format("GPU {}  {}  {}", index, gpu.locality.bus, gpu.name);
  if (gpu.nvlinks > 0) text += fmt::format(", {} NVLinks{}", gpu.nvlinks, gpu.nvswitch ? " to switches" : "");
  return gpu.ordinal < 0 ? text + " (not shown to this process)" : text;
}

std::string nic_line(const Nic& nic, bool in_use) {
  std::string text = fmt::format("{} {}", in_use ? "NIC" : "other", nic.name());
  if (!nic.device.empty() && !nic.interface.empty()) text += fmt::format(" ({})", nic.interface);
  if (!nic.locality.bus.empty()) text += "  " + nic.locality.bus;
  text += fmt::format("  {}, {}", name_of(nic.kind), machine::bits_text(nic.rate));
  if (!nic.address.empty()) text += ", " + nic.address;
  return nic.up ? text : text + ", down";
}

std::string numa_line(const Machine& node, int numa) {
  const machine::NumaNode& at = node.numa[numa];
  std::vector<int> cpus;
  int cores = 0;
  for (const machine::Core& core : node.cores) {
    if (core.numa != numa) continue;
    ++cores;
    cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  // Old machines have several sockets in a NUMA node.
  const std::string socket = at.socket < 0 ? "" : fmt::format(" of socket {}", at.socket);
  return fmt::format("NUMA node {}{}: {} cores (logical CPUs {}), {:.0f} GB", at.os_index, socket, cores,
                     machine::list_text(cpus), static_cast<double>(at.memory) / 1e9);
}

/// Lines under their parent, with branches.
void branch(std::string& text, const std::string& before, const std::vector<std::string>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i)
    text += fmt::format("{}{} {}\n", before, i + 1 == lines.size() ? "└─" : "├─", lines[i]);
}

std::string node_text(const Node& node) {
  const Machine& machine = node.machine;
  std::string text =
      fmt::format("{}, {}, {} cores ({} logical CPUs){}{}\n", counted(machine.sockets, "socket"),
                  counted(std::ssize(machine.numa), "NUMA node"), machine.cores.size(),
                  machine.hardware_threads(), machine.processor.empty() ? "" : ", ", machine.processor);
  // Devices under their NUMA node; those of no single one at the end.
  std::map<int, std::vector<std::string>> devices;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i)
    devices[machine.gpus[i].locality.numa].push_back(gpu_line(machine, i));
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    const bool in_use =
        std::ranges::find(node.resources.nics, static_cast<int>(i)) != node.resources.nics.end();
    devices[machine.nics[i].locality.numa].push_back(nic_line(machine.nics[i], in_use));
  }
  const bool loose = devices.contains(-1);
  for (int numa = 0; numa < static_cast<int>(machine.numa.size()); ++numa) {
    const bool last = !loose && numa + 1 == static_cast<int>(machine.numa.size());
    text += fmt::format("{} {}\n", last ? "└─" : "├─", numa_line(machine, numa));
    branch(text, last ? "   " : "│  ", devices[numa]);
  }
  if (loose) {
    text += "└─ of no single NUMA node\n";
    branch(text, "   ", devices[-1]);
  }
  return text;
}

std::string paths_text(const Node& node) {
  if (node.machine.gpus.empty() || node.resources.nics.empty()) return {};
  std::string text = fmt::format("\n{:<8}", "");
  for (const int index : node.resources.nics) text += fmt::format(" {:<8}", node.machine.nics[index].name());
  for (std::size_t gpu = 0; gpu < node.machine.gpus.size(); ++gpu) {
    text += fmt::format("\nGPU {:<4}", gpu);
    for (const int index : node.resources.nics)
      text += fmt::format(" {:<8}", name_of(node.machine.paths[gpu][index]));
  }
  return text +
         "\nPIX: one PCIe switch between, PXB: several, PHB: a host bridge, NODE: a NUMA node, SOCK: a "
         "socket, SYS: two sockets\n";
}

std::string ranks_text(const Node& node) {
  std::string text = fmt::format("\n{:<10} {:<5} {:<16} {:<8} {:<24} {}\n", "local rank", "GPU", "NIC", "",
                                 "logical CPUs", "memory of");
  for (const machine::RankBinding& rank : node.ranks) {
    const Nic* nic = node.nic(rank.nic);
    text += fmt::format("{:<10} {:<5} {:<16} {:<8} {:<24} NUMA {}\n", rank.local_rank,
                        rank.gpu >= 0                  ? fmt::to_string(rank.gpu)
                        : node.resources.gpu_count > 0 ? "(any)"
                                                       : "none",
                        nic == nullptr ? "none" : nic->name(),
                        // Nothing for NICs whose place is not known.
                        nic == nullptr || nic->locality.bus.empty() ? "" : name_of(rank.path),
                        machine::list_text(machine::cpus_of(node.machine, rank)),
                        machine::list_text(machine::memory_of(node.machine, rank)));
  }
  return text;
}

std::string job_text(const JobInventory& inventory) {
  const Job& job = inventory.job;
  const auto topology = topology_of(job);
  std::string text = fmt::format(
      "{}: {}\n", job.source,
      topology ? topology->to_string() : fmt::format("{} nodes, {} ranks", job.nodes(), job.ranks()));
  for (int node = 0; node < job.nodes(); ++node) {
    std::vector<int> ranks;
    for (int rank = 0; rank < job.ranks(); ++rank) {
      if (job.node_of_rank[rank] == node) ranks.push_back(rank);
    }
    const int leaf = job.leaf(node);
    text += fmt::format("  {}: ranks {}{}\n", job.hosts[node], machine::list_text(ranks),
                        leaf < 0 ? "" : ", switch " + job.leaves[leaf].path);
  }
  return text;
}

std::string link_text(const simulator::Link& link) {
  return fmt::format("{:.3g} GB/s, {:.3g} µs", link.bandwidth / 1e9, link.latency * 1e6);
}

}  // namespace

std::string tree_text(const JobInventory& inventory, const machine::Guess& guess) {
  std::string text = job_text(inventory);
  // Nodes are alike, or there is an error that says how they differ.
  const Node& node = inventory.nodes.front();
  text += fmt::format("\n{}{}: {}", node.machine.host,
                      inventory.nodes.size() > 1
                          ? fmt::format(" (and {} more that were looked at)", inventory.nodes.size() - 1)
                          : "",
                      node_text(node));
  text += paths_text(node) + ranks_text(node);
  text +=
      fmt::format("\ninside a node   {}   {}\nbetween nodes   {}   {}\n", link_text(guess.cluster.intra_node),
                  guess.comments.intra_node, link_text(guess.cluster.inter_node), guess.comments.inter_node);
  return text + "\nMeasure instead: annulus-bench links --output cluster.toml\n";
}

}  // namespace annulus::topology_app
