#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <annulus/base/error.hpp>

#include "common/process.hpp"
#include "topology/environment_text.hpp"

namespace annulus::topology_app {

void execute(const Options& options, const RankInventory& inventory,
             const std::vector<machine::Setting>& settings) {
  const bool log = inventory.speaks && std::getenv("ANNULUS_TOPOLOGY_QUIET") == nullptr;
  for (const machine::Setting& setting : settings) {
    if (log)
      app::say(
          fmt::format("annulus-topology: rank 0: {}={}  # {}", setting.name, setting.value, setting.why));
    if (!setting.kept) ::setenv(setting.name.c_str(), setting.value.c_str(), 1);
  }
  const machine::Machine& node = inventory.node.machine;
  if (!inventory.bound && !inventory.binding.cores.empty()) {
    std::vector<int> numa;
    for (const int index : inventory.binding.numa)
      numa.push_back(node.numa[static_cast<std::size_t>(index)].os_index);
    const std::string failed = machine::bind_this_process(machine::cpus_of(node, inventory.binding), numa);
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
