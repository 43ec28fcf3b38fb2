#include "topology/environment_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace annulus::topology_app {

std::string quoted(const std::string& value) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!value.empty() && value.find_first_not_of(plain) == value.npos) return value;
  std::string text = "'";
  for (const char c : value) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string shell_text(const RankInventory& inventory, const std::vector<machine::Setting>& settings) {
  std::string text = fmt::format("# local rank {} of {} on {}\n", inventory.binding.local_rank,
                                 inventory.binding.local_ranks, inventory.node.machine.host);
  for (const machine::Setting& setting : settings)
    text += fmt::format("{}export {}={}  # {}\n", setting.kept ? "# " : "", setting.name,
                        quoted(setting.value), setting.why);
  return text;
}

}  // namespace annulus::topology_app
