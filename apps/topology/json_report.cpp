#include "topology/json_report.hpp"

#include <annulus/base/version.hpp>

namespace annulus::topology_app {
namespace {

using machine::Machine;
using nlohmann::json;

json to_json(const machine::Place& place) {
  return {{"bus", place.bus.empty() ? json() : json(place.bus)},
          {"numa", place.numa < 0 ? json() : json(place.numa)},
          {"socket", place.socket < 0 ? json() : json(place.socket)}};
}

json gpus_json(const Machine& machine) {
  json list = json::array();
  for (const machine::Gpu& gpu : machine.gpus) {
    json entry = to_json(gpu.place);
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
    json entry = to_json(nic.place);
    json reach = json::array();
    for (const auto& of_gpu : machine.reach) reach.push_back(name_of(of_gpu[i]));
    entry.update({{"device", nic.device.empty() ? json() : json(nic.device)},
                  {"interface", nic.interface.empty() ? json() : json(nic.interface)},
                  {"kind", name_of(nic.kind)},
                  {"rate", nic.rate > 0 ? json(nic.rate) : json()},
                  {"up", nic.up},
                  {"address", nic.address.empty() ? json() : json(nic.address)},
                  {"reach_of_gpus", reach}});
    list.push_back(entry);
  }
  return list;
}

json rank_json(const Machine& machine, const machine::Parts& parts, const machine::RankPlace& rank) {
  const bool has_card = rank.rail >= 0;
  const int nic = has_card ? parts.rails[static_cast<std::size_t>(rank.rail)] : -1;
  std::vector<std::string> cards;
  for (const int rail : rank.rails)
    cards.push_back(
        machine.nics[static_cast<std::size_t>(parts.rails[static_cast<std::size_t>(rail)])].name());
  const bool is_known = has_card && !machine.nics[static_cast<std::size_t>(nic)].place.bus.empty();
  return {{"local_rank", rank.local_rank},
          {"gpu", rank.gpu < 0 ? json() : json(rank.gpu)},
          {"rail", has_card ? json(rank.rail) : json()},
          {"card", has_card ? json(machine.nics[static_cast<std::size_t>(nic)].name()) : json()},
          {"cards", cards},
          {"reach", is_known ? json(name_of(rank.reach)) : json()},
          {"cpus", machine::cpus_of(machine, rank)},
          {"numa", rank.numa},
          {"cores_shared", rank.shared}};
}

json node_json(const Node& node) {
  const Machine& machine = node.machine;
  json numa = json::array(), rails = json::array(), ranks = json::array();
  for (const machine::NumaNode& entry : machine.numa)
    numa.push_back({{"os_index", entry.os_index}, {"memory", entry.memory}, {"socket", entry.socket}});
  for (const int rail : node.parts.rails)
    rails.push_back(machine.nics[static_cast<std::size_t>(rail)].name());
  for (const machine::RankPlace& rank : node.ranks) ranks.push_back(rank_json(machine, node.parts, rank));
  return {{"host", machine.host},
          {"processor", machine.processor},
          {"sockets", machine.sockets},
          {"cores", machine.cores.size()},
          {"hardware_threads", machine.hardware_threads()},
          {"numa", numa},
          {"gpus", gpus_json(machine)},
          {"nics", nics_json(machine)},
          {"software", machine.software},
          {"rails", rails},
          {"ranks", ranks}};
}

json findings_json(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& finding : findings)
    list.push_back({{"severity", finding.error ? "error" : "warning"}, {"text", finding.text}});
  return list;
}

json head() {
  return {{"program", "annulus-topology"}, {"version", version()}, {"git_hash", git_hash()}};
}

}  // namespace

json to_json(const Scene& scene, const machine::Guess& guess) {
  json all = head();
  json leaves = json::array(), nodes = json::array(), leaf_of = json::array();
  for (const LeafSwitch& leaf : scene.job.leaves)
    leaves.push_back({{"name", leaf.name}, {"path", leaf.path}, {"hosts", leaf.hosts}});
  for (int node = 0; node < scene.job.nodes(); ++node) {
    const int leaf = scene.job.leaf(node);
    leaf_of.push_back(leaf < 0 ? json() : json(scene.job.leaves[static_cast<std::size_t>(leaf)].name));
  }
  for (const Node& node : scene.nodes) nodes.push_back(node_json(node));
  const auto link = [](const simulate::Link& l) {
    return json{{"bandwidth", l.bandwidth}, {"latency", l.latency}};
  };
  all["job"] = {{"source", scene.job.source},
                {"hosts", scene.job.hosts},
                {"switch_of_host", leaf_of},
                {"host_of_rank", scene.job.node_of_rank},
                {"switches", leaves}};
  all["nodes"] = nodes;
  all["guess"] = {{"inside", link(guess.cluster.inside)},
                  {"between", link(guess.cluster.between)},
                  {"rails", guess.cluster.rails},
                  {"cluster", simulate::to_text(guess.cluster, guess.comments)}};
  all["findings"] = findings_json(scene.findings);
  return all;
}

json to_json(const RankScene& scene, const std::vector<machine::Setting>& settings) {
  json all = head(), list = json::array();
  for (const machine::Setting& setting : settings)
    list.push_back(
        {{"name", setting.name}, {"value", setting.value}, {"why", setting.why}, {"kept", setting.kept}});
  all["host"] = scene.node.machine.host;
  all["rank"] = rank_json(scene.node.machine, scene.node.parts, scene.place);
  all["bound_by_launcher"] = scene.bound;
  all["environment"] = list;
  all["findings"] = findings_json(scene.findings);
  return all;
}

}  // namespace annulus::topology_app
