#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <annulus/machine/placement.hpp>

namespace annulus::machine {

/// A node type of the folder nodes.
inline Machine node(const std::string& name) {
  return read_machine(std::string(ANNULUS_NODES) + "/" + name + ".xml");
}

/// Names of the cards that ranks use, rail by rail.
inline std::vector<std::string> rails(const Machine& machine, const Parts& parts) {
  std::vector<std::string> names;
  for (const int rail : parts.rails) names.push_back(machine.nics[static_cast<std::size_t>(rail)].name());
  return names;
}

/// The card of each rank.
inline std::vector<std::string> cards(const Machine& machine, const Parts& parts,
                                      const std::vector<RankPlace>& ranks) {
  std::vector<std::string> names;
  for (const RankPlace& rank : ranks)
    names.push_back(rails(machine, parts)[static_cast<std::size_t>(rank.rail)]);
  return names;
}

inline std::vector<std::string> texts(const std::vector<Finding>& findings) {
  std::vector<std::string> list;
  for (const Finding& finding : findings) list.push_back((finding.error ? "error: " : "") + finding.text);
  return list;
}

inline Variables variables(std::map<std::string, std::string> values = {}) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

}  // namespace annulus::machine
