#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/machine/placement.hpp"

namespace annulus::machine {

/// A node type of the folder nodes.
inline Machine node(const std::string& name) {
  return read_machine(std::string(ANNULUS_NODES) + "/" + name + ".xml");
}

/// Names of the NICs that ranks use, NIC by NIC.
inline std::vector<std::string> nics(const Machine& machine, const NodeResources& resources) {
  std::vector<std::string> names;
  for (const int index : resources.nics) names.push_back(machine.nics[index].name());
  return names;
}

/// The NIC of each rank.
inline std::vector<std::string> nics_of(const Machine& machine, const NodeResources& resources,
                                        const std::vector<RankBinding>& ranks) {
  std::vector<std::string> names;
  for (const RankBinding& rank : ranks) names.push_back(resources.nic(machine, rank.nic).name());
  return names;
}

inline std::vector<std::string> texts(const std::vector<Diagnostic>& diagnostics) {
  std::vector<std::string> list;
  for (const Diagnostic& diagnostic : diagnostics)
    list.push_back((diagnostic.error ? "error: " : "") + diagnostic.text);
  return list;
}

inline Variables variables(std::map<std::string, std::string> values = {}) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace annulus::machine
