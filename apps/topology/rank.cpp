#include "topology/report.hpp"

#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <annulus/base/error.hpp>

#include "common/process.hpp"
#include "common/text.hpp"

namespace annulus::topology_app {

std::string shell_text(const RankInventory& inventory,
                       const std::vector<machine::EnvironmentSetting>& settings) {
  std::string text = fmt::format("# local rank {} of {} on {}\n", inventory.binding.local_rank,
                                 inventory.binding.local_ranks, inventory.node.machine.host);
  for (const machine::EnvironmentSetting& setting : settings)
    text += fmt::format("{}export {}={}  # {}\n", setting.kept ? "# " : "", setting.name,
                        app::shell_word(setting.value), setting.why);
  return text;
}

void execute(const TopologyOptions& options, const RankInventory& inventory,
             const std::vector<machine::EnvironmentSetting>& settings) {
  const bool log = inventory.speaks && std::getenv("ANNULUS_TOPOLOGY_QUIET") == nullptr;
  for (const machine::EnvironmentSetting& setting : settings) {
    if (log)
      app::say(
          fmt::format("annulus-topology: rank 0: {}={}  # {}", setting.name, setting.value, setting.why));
    if (!setting.kept) ::setenv(setting.name.c_str(), setting.value.c_str(), 1);
  }
  const machine::Machine& node = inventory.node.machine;
  if (!inventory.bound && !inventory.binding.cores.empty()) {
    const std::string failed = machine::bind_this_process(machine::cpus_of(node, inventory.binding),
                                                          machine::memory_of(node, inventory.binding));
    if (log && !failed.empty())
      app::say(fmt::format("annulus-topology: warning: {}: not bound to {}", node.host, failed));
  }
  std::fflush(nullptr);
  std::vector<char*> arguments;
  for (const std::string& argument : options.command)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  fail("{}: '{}' cannot be started: {}", node.host, options.command.front(), std::strerror(errno));
}

}  // namespace annulus::topology_app
