#pragma once

#include <hwloc.h>

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include <annulus/base/error.hpp>

#include "base/printable.hpp"

namespace annulus::machine {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Hwloc = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

/// An hwloc topology that has everything described: CPUs beyond this process' cgroup, devices, Misc
/// objects. Not loaded. `what` stands for it in messages.
inline Hwloc make_hwloc(const std::string& what) {
  hwloc_topology_t raw = nullptr;
  require(hwloc_topology_init(&raw) == 0, "{}: hwloc does not start", what);
  Hwloc topology(raw);
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_MISC, HWLOC_TYPE_FILTER_KEEP_ALL);
  for (const char* slow : {"gl", "opencl"})  // they open displays and drivers, and tell nothing that is used
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, slow);
  return topology;
}

/// A text of hwloc, which may be null, and comes from files of anybody.
inline std::string text_of(const char* text) {
  return text == nullptr ? "" : printable(text);
}

/// The value of an info attribute; empty without one.
inline std::string info(hwloc_obj_t object, const char* name) {
  return text_of(hwloc_obj_get_info_by_name(object, name));
}

/// Adds an info attribute, unless it is empty.
inline void add_info(hwloc_obj_t object, const char* name, const std::string& value) {
  if (!value.empty()) hwloc_obj_add_info(object, name, value.c_str());
}

/// "0000:1b:00.0", as NVML and the kernel write it.
std::string bus_of(hwloc_obj_t pci);

/// Attributes that Annulus adds to hwloc's, so that one XML file tells all of a node.
namespace attribute {
inline constexpr const char *rate = "AnnulusRate",        ///< bit/s
    *link_layer = "AnnulusLinkLayer",                     ///< InfiniBand or Ethernet
        *port = "AnnulusPort",                            ///< of the RDMA device, the one that is up
            *state = "AnnulusState",                      ///< up or down
                *address = "AnnulusAddress",              ///< IPv4 address/prefix
                    *gpu = "AnnulusGpu",                  ///< name by the driver
                        *ordinal = "AnnulusOrdinal",      ///< in the driver's list; -1: not accessible
                            *nvlinks = "AnnulusNvlinks",  ///< active links
                                *nvlink_version = "AnnulusNvlinkVersion",  //
                                    *nvlink_peers =
                                        "AnnulusNvlinkPeers";  ///< "switch" or PCI addresses, comma between
inline constexpr std::string_view software = "AnnulusSoftware.";  ///< and a name: its version
inline constexpr const char* clock = "AnnulusClock";              ///< seconds since 1970
}  // namespace attribute

/// Adds what sysfs and the sockets' interface tell of this machine's NICs.
void annotate_network(hwloc_topology_t topology);

/// Adds versions of software that has to be equal on all nodes of a job, and the clock.
void annotate_software(hwloc_topology_t topology);

/// Adds what NVML tells of this machine's GPUs, where its library and a driver are there.
void annotate_gpus(hwloc_topology_t topology);

}  // namespace annulus::machine
