#include "topology/json_report.hpp"

#include <annulus/base/version.hpp>

namespace annulus::topology_app {
namespace {

using machine::Machine;
using nlohmann::json;

json to_json(const machine::DeviceLocality& locality) {
  return {{"bus", locality.bus.empty() ? json() : json(locality.bus)},
          {"numa", locality.numa < 0 ? json() : json(locality.numa)},
          {"socket", locality.socket < 0 ? json() : json(locality.socket)}};
}

json gpus_json(const Machine& machine) {
  json list = json::array();
  for (const machine::Gpu& gpu : machine.gpus) {
    json entry = to_json(gpu.locality);
    entry.update({{"name", gpu.name},
                  {"ordinal", gpu.ordinal < 0 ? json() : json(gpu.ordinal)},
                  {"nvlinks", gpu.nvlinks},
                  {"nvlink_version", gpu.nvlink_version},
                  {"nvswitch", gpu.nvswitch}});
    list.push_back(entry);
  }
  return list;
}

json nics_json(const Machine& machine) {
  json list = json::array();
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    const machine::Nic& nic = machine.nics[i];
    json entry = to_json(nic.locality);
    json path = json::array();
    for (const auto& of_gpu : machine.paths) path.push_back(name_of(of_gpu[i]));
    entry.update({{"device", nic.device.empty() ? json() : json(nic.device)},
                  {"interface", nic.interface.empty() ? json() : json(nic.interface)},
                  {"kind", name_of(nic.kind)},
                  {"rate", nic.rate > 0 ? json(nic.rate) : json()},
                  {"up", nic.up},
                  {"address", nic.address.empty() ? json() : json(nic.address)},
                  {"path_types_of_gpus", path}});
    list.push_back(entry);
  }
  return list;
}

json rank_json(const Machine& machine, const machine::NodeResources& resources,
               const machine::RankBinding& rank) {
  const bool has_card = rank.nic >= 0;
  const int nic = has_card ? resources.nics[static_cast<std::size_t>(rank.nic)] : -1;
  std::vector<std::string> nics;
  for (const int index : rank.nics)
    nics.push_back(
        machine.nics[static_cast<std::size_t>(resources.nics[static_cast<std::size_t>(index)])].name());
  const bool is_known = has_card && !machine.nics[static_cast<std::size_t>(nic)].locality.bus.empty();
  return {{"local_rank", rank.local_rank},
          {"gpu", rank.gpu < 0 ? json() : json(rank.gpu)},
          {"nic_index", has_card ? json(rank.nic) : json()},
          {"nic", has_card ? json(machine.nics[static_cast<std::size_t>(nic)].name()) : json()},
          {"nics", nics},
          {"path_type", is_known ? json(name_of(rank.path)) : json()},
          {"cpus", machine::cpus_of(machine, rank)},
          {"numa", rank.numa},
          {"cores_shared", rank.shared}};
}

json node_json(const Node& node) {
  const Machine& machine = node.machine;
  json numa = json::array(), nics = json::array(), ranks = json::array();
  for (const machine::NumaNode& entry : machine.numa)
    numa.push_back({{"os_index", entry.os_index}, {"memory", entry.memory}, {"socket", entry.socket}});
  for (const int index : node.resources.nics)
    nics.push_back(machine.nics[static_cast<std::size_t>(index)].name());
  for (const machine::RankBinding& rank : node.ranks)
    ranks.push_back(rank_json(machine, node.resources, rank));
  return {{"host", machine.host},
          {"processor", machine.processor},
          {"sockets", machine.sockets},
          {"cores", machine.cores.size()},
          {"hardware_threads", machine.hardware_threads()},
          {"numa", numa},
          {"gpus", gpus_json(machine)},
          {"nics", nics_json(machine)},
          {"software", machine.software},
          {"fabric_nics", nics},
          {"ranks", ranks}};
}

json diagnostics_json(const std::vector<Diagnostic>& diagnostics) {
  json list = json::array();
  for (const Diagnostic& diagnostic : diagnostics)
    list.push_back({{"severity", diagnostic.error ? "error" : "warning"}, {"text", diagnostic.text}});
  return list;
}

json head() {
  return {{"program", "annulus-topology"}, {"version", version()}, {"git_hash", git_hash()}};
}

}  // namespace

json to_json(const JobInventory& inventory, const machine::Guess& guess) {
  json all = head();
  json leaves = json::array(), nodes = json::array(), leaf_of = json::array();
  for (const LeafSwitch& leaf : inventory.job.leaves)
    leaves.push_back({{"name", leaf.name}, {"path", leaf.path}, {"hosts", leaf.hosts}});
  for (int node = 0; node < inventory.job.nodes(); ++node) {
    const int leaf = inventory.job.leaf(node);
    leaf_of.push_back(leaf < 0 ? json() : json(inventory.job.leaves[static_cast<std::size_t>(leaf)].name));
  }
  for (const Node& node : inventory.nodes) nodes.push_back(node_json(node));
  const auto link = [](const simulate::Link& l) {
    return json{{"bandwidth", l.bandwidth}, {"latency", l.latency}};
  };
  all["job"] = {{"source", inventory.job.source},
                {"hosts", inventory.job.hosts},
                {"switch_of_host", leaf_of},
                {"host_of_rank", inventory.job.node_of_rank},
                {"switches", leaves}};
  all["nodes"] = nodes;
  all["guess"] = {{"intra_node", link(guess.cluster.intra_node)},
                  {"inter_node", link(guess.cluster.inter_node)},
                  {"nics_per_node", guess.cluster.nics_per_node},
                  {"cluster", simulate::to_text(guess.cluster, guess.comments)}};
  all["diagnostics"] = diagnostics_json(inventory.diagnostics);
  return all;
}

json to_json(const RankInventory& inventory, const std::vector<machine::Setting>& settings) {
  json all = head(), list = json::array();
  for (const machine::Setting& setting : settings)
    list.push_back(
        {{"name", setting.name}, {"value", setting.value}, {"why", setting.why}, {"kept", setting.kept}});
  all["host"] = inventory.node.machine.host;
  all["rank"] = rank_json(inventory.node.machine, inventory.node.resources, inventory.binding);
  all["bound_by_launcher"] = inventory.bound;
  all["environment"] = list;
  all["diagnostics"] = diagnostics_json(inventory.diagnostics);
  return all;
}

}  // namespace annulus::topology_app
