#include "topology/report.hpp"

#include "common/output/cluster_json.hpp"
#include "common/output/output_json.hpp"

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

json rank_json(const Node& node, const machine::RankBinding& rank) {
  const machine::Nic* nic = node.nic(rank.nic);
  std::vector<std::string> nics;
  for (const int index : rank.nics) nics.push_back(node.nic(index)->name());
  return {{"local_rank", rank.local_rank},
          {"gpu", rank.gpu < 0 ? json() : json(rank.gpu)},
          {"nic_index", nic == nullptr ? json() : json(rank.nic)},
          {"nic", nic == nullptr ? json() : json(nic->name())},
          {"nics", nics},
          {"path_type", nic == nullptr || nic->locality.bus.empty() ? json() : json(name_of(rank.path))},
          {"cpus", machine::cpus_of(node.machine, rank)},
          {"numa", rank.numa},
          {"cores_shared", rank.shared}};
}

json node_json(const Node& node) {
  const Machine& machine = node.machine;
  json numa = json::array(), nics = json::array(), ranks = json::array();
  for (const machine::NumaNode& entry : machine.numa)
    numa.push_back({{"os_index", entry.os_index}, {"memory", entry.memory}, {"socket", entry.socket}});
  for (const int index : node.resources.nics) nics.push_back(machine.nics[index].name());
  for (const machine::RankBinding& rank : node.ranks) ranks.push_back(rank_json(node, rank));
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

}  // namespace

json to_json(const JobInventory& inventory, const machine::Guess& guess) {
  json all = app::output_head("annulus-topology");
  json leaves = json::array(), nodes = json::array(), leaf_of = json::array();
  for (const LeafSwitch& leaf : inventory.job.leaves)
    leaves.push_back({{"name", leaf.name}, {"path", leaf.path}, {"hosts", leaf.hosts}});
  for (int node = 0; node < inventory.job.nodes(); ++node) {
    const int leaf = inventory.job.leaf(node);
    leaf_of.push_back(leaf < 0 ? json() : json(inventory.job.leaves[leaf].name));
  }
  for (const Node& node : inventory.nodes) nodes.push_back(node_json(node));
  all["job"] = {{"source", inventory.job.source},
                {"hosts", inventory.job.hosts},
                {"switch_of_host", leaf_of},
                {"host_of_rank", inventory.job.node_of_rank},
                {"switches", leaves}};
  all["nodes"] = nodes;
  all["guess"] = app::to_json(guess.cluster);
  all["guess"]["cluster"] = simulator::to_text(guess.cluster, guess.comments);
  all["diagnostics"] = diagnostics_json(inventory.diagnostics);
  return all;
}

json to_json(const RankInventory& inventory, const std::vector<machine::EnvironmentSetting>& settings) {
  json all = app::output_head("annulus-topology"), list = json::array();
  for (const machine::EnvironmentSetting& setting : settings)
    list.push_back(
        {{"name", setting.name}, {"value", setting.value}, {"why", setting.why}, {"kept", setting.kept}});
  all["host"] = inventory.node.machine.host;
  all["rank"] = rank_json(inventory.node, inventory.binding);
  all["bound_by_launcher"] = inventory.bound;
  all["environment"] = list;
  all["diagnostics"] = diagnostics_json(inventory.diagnostics);
  return all;
}

}  // namespace annulus::topology_app
