#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "cluster/machine/hwloc_topology.hpp"
#include "cluster/machine/machine.hpp"

namespace annulus::machine {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, FreeBitmap>;

Bitmap bitmap_of(const std::vector<int>& numbers) {
  Bitmap bitmap(hwloc_bitmap_alloc());
  for (const int number : numbers) hwloc_bitmap_set(bitmap.get(), static_cast<unsigned>(number));
  return bitmap;
}

/// Devices take time to find and are not needed to bind.
Hwloc logical_cpus() {
  hwloc_topology_t raw = nullptr;
  require(hwloc_topology_init(&raw) == 0, "this machine: hwloc does not start");
  Hwloc topology(raw);
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  require(hwloc_topology_load(raw) == 0, "this machine: hwloc cannot describe it");
  return topology;
}

}  // namespace

std::string bind_this_process(const std::vector<int>& cpus, const std::vector<int>& numa_nodes) {
  const Hwloc topology = logical_cpus();
  std::string failed;
  if (!cpus.empty()) {
    const Bitmap set = bitmap_of(cpus);
    if (hwloc_set_cpubind(topology.get(), set.get(), HWLOC_CPUBIND_PROCESS) != 0)
      failed = fmt::format("logical CPUs {}: {}", list_text(cpus), std::strerror(errno));
  }
  if (!numa_nodes.empty()) {
    const Bitmap set = bitmap_of(numa_nodes);
    // Not strict: a full NUMA node is slower memory then, and not the end of the run. Threads and what is
    // started later inherit it.
    if (hwloc_set_membind(topology.get(), set.get(), HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET) != 0)
      failed += fmt::format("{}memory of NUMA nodes {}: {}", failed.empty() ? "" : "; ",
                            list_text(numa_nodes), std::strerror(errno));
  }
  return failed;
}

std::vector<int> bound_cpus() {
  const Hwloc topology = logical_cpus();
  const Bitmap set(hwloc_bitmap_alloc());
  std::vector<int> cpus;
  if (hwloc_get_cpubind(topology.get(), set.get(), HWLOC_CPUBIND_PROCESS) != 0) return cpus;
  unsigned cpu = 0;
  hwloc_bitmap_foreach_begin(cpu, set.get()) cpus.push_back(static_cast<int>(cpu));
  hwloc_bitmap_foreach_end();
  return cpus;
}

}  // namespace annulus::machine
