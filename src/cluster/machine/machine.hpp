#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/machine/profile.hpp"

namespace annulus::machine {

/// What lies between two devices, nearest first: the classes of `nvidia-smi topo -m`, and `socket`, which it
/// counts as SYS.
enum class PathType : std::uint8_t {
  pcie_switch,    ///< PIX: at most one PCIe switch
  pcie_switches,  ///< PXB: several PCIe switches, not the host
  host_bridge,    ///< PHB: one host bridge of the processor
  numa,           ///< NODE: between the host bridges of a NUMA node
  socket,         ///< SOCK: between NUMA nodes of a socket
  system          ///< SYS: between sockets
};
std::string_view name_of(PathType path);

/// A physical core.
struct Core {
  std::vector<int> cpus;  ///< its hardware threads, as the system counts them
  int numa = 0;           ///< index into Machine::numa
  int socket = 0;
  bool allowed = true;  ///< this process may be bound to it (cgroup)
};

struct NumaNode {
  int os_index = 0;         ///< as the system counts
  std::int64_t memory = 0;  ///< bytes
  int socket = 0;
};

/// Where a device hangs.
struct DeviceLocality {
  std::string bus;         ///< PCI address "0000:1b:00.0"; empty for devices without one
  int numa = -1;           ///< index into Machine::numa; −1: of no single one
  int socket = -1;         ///< −1: of no single one
  std::vector<int> cores;  ///< indices of the nearest cores; empty: not known
};

struct Gpu {
  std::string name;
  DeviceLocality locality;
  int ordinal = -1;  ///< number in the driver's list (PCI order); −1: not to be used by this process
  int nvlinks = 0;   ///< active links
  int nvlink_version = 0;
  bool nvswitch = false;  ///< its links end in switches, so that every GPU of the node is reached alike
  std::vector<std::string> nvlink_peers;  ///< PCI addresses of GPUs at the other ends, once a link
};

/// A network card: one function of the PCI bus, or an interface without one.
struct Nic {
  std::string device;     ///< RDMA device ("mlx5_0"); empty without RDMA
  std::string interface;  ///< network interface ("ib0"); empty where the NIC has none
  int port = 1;           ///< of the RDMA device
  NicKind kind = NicKind::ethernet;
  DeviceLocality locality;
  double rate = 0;  ///< bit/s; 0: not known
  bool up = true;
  std::string address;  ///< IPv4 address and prefix of the interface: "10.0.0.7/24"

  const std::string& name() const { return device.empty() ? interface : device; }
};

/// One node, as hwloc, NVML and sysfs tell it.
struct Machine {
  std::string host;
  std::string processor;
  std::vector<NumaNode> numa;
  int sockets = 1;
  std::vector<Core> cores;
  std::vector<Gpu> gpus;                     ///< in the order of the PCI bus
  std::vector<Nic> nics;                     ///< in the order of the PCI bus, then those without one
  std::vector<std::vector<PathType>> paths;  ///< (gpus, nics)

  std::map<std::string, std::string>
      software;      ///< what has to be equal on all nodes: "annulus", "NCCL", "driver"
  double clock = 0;  ///< seconds since 1970 when the node was described; 0: not known

  int hardware_threads() const;
};

/// "0-3,8" for {0, 1, 2, 3, 8}.
std::string list_text(std::vector<int> numbers);

/// A node and the text of the hwloc XML file that read_machine takes for it.
struct Description {
  Machine machine;
  std::string xml;
};

/// Looks at this machine: hwloc; NVML where its library is; sysfs for what hwloc does not tell of network
/// NICs. Throws Error when hwloc fails.
Description describe_this_machine();

/// Reads an hwloc XML file: one of describe_this_machine, or of lstopo (which says less of NICs).
/// `host` is the node's name, else that of the file's contents, else the file's own. Throws Error that names
/// the file.
Machine read_machine(const std::string& path, const std::string& host = {});

/// Binds this process, and what it starts, to logical CPUs, and its memory to NUMA nodes (system's
/// numbers; may be empty). Returns what could not be bound and why, or nothing.
std::string bind_this_process(const std::vector<int>& cpus, const std::vector<int>& numa_nodes);

/// Logical CPUs that this process is bound to now.
std::vector<int> bound_cpus();

}  // namespace annulus::machine
