#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/parse_number.hpp"
#include "cluster/machine/hwloc_topology.hpp"
#include "cluster/machine/machine.hpp"

namespace annulus::machine {
namespace {

constexpr unsigned nvidia = 0x10de, amd = 0x1002;

bool is_gpu(hwloc_obj_t pci) {
  const auto& attributes = pci->attr->pcidev;
  const unsigned group = attributes.class_id >> 8;
  if (attributes.vendor_id == nvidia) return group == 0x03;
  // Without 0300: that is also the processor's own display.
  return attributes.vendor_id == amd &&
         (attributes.class_id == 0x0302 || attributes.class_id == 0x0380 || group == 0x12);
}

/// Reads one topology into a Machine.
class HwlocReader {
 public:
  explicit HwlocReader(hwloc_topology_t topology) : topology_(topology) {}

  Machine read() {
    machine_.sockets = std::max(1, hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_PACKAGE));
    hwloc_obj_t root = hwloc_get_root_obj(topology_);
    machine_.host = info(root, "HostName");
    if (hwloc_obj_t package = hwloc_get_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, 0))
      machine_.processor = info(package, "CPUModel");
    read_software(root);
    read_numa();
    read_cores();
    read_pci();
    read_plain_interfaces();
    machine_.paths.assign(machine_.gpus.size(),
                          std::vector<PathType>(machine_.nics.size(), PathType::system));
    for (std::size_t gpu = 0; gpu < machine_.gpus.size(); ++gpu) {
      for (std::size_t nic = 0; nic < machine_.nics.size(); ++nic)
        machine_.paths[gpu][nic] = path(gpu_objects_[gpu], nic_objects_[nic], machine_.gpus[gpu].locality,
                                        machine_.nics[nic].locality);
    }
    return std::move(machine_);
  }

 private:
  int socket_of(hwloc_const_cpuset_t cpus) const {
    for (int socket = 0; socket < hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_PACKAGE); ++socket) {
      hwloc_obj_t object = hwloc_get_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, static_cast<unsigned>(socket));
      if (hwloc_bitmap_isincluded(cpus, object->cpuset)) return socket;
    }
    return machine_.sockets == 1 ? 0 : -1;
  }

  /// Index of the NUMA node that alone holds the CPUs, or −1.
  int numa_of(hwloc_const_cpuset_t cpus) const {
    int found = -1;
    for (std::size_t i = 0; i < numa_objects_.size(); ++i) {
      if (!hwloc_bitmap_isincluded(cpus, numa_objects_[i]->cpuset)) continue;
      if (found >= 0) return -1;
      found = static_cast<int>(i);
    }
    return found;
  }

  void read_software(hwloc_obj_t root) {
    for (unsigned i = 0; i < root->infos_count; ++i) {
      const std::string name = text_of(root->infos[i].name);
      if (name.starts_with(attribute::software))
        machine_.software.emplace(name.substr(attribute::software.size()), text_of(root->infos[i].value));
    }
    machine_.clock = std::atof(info(root, attribute::clock).c_str());
  }

  void read_numa() {
    for (hwloc_obj_t object = nullptr;
         (object = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, object)) != nullptr;) {
      if (hwloc_bitmap_iszero(object->cpuset) || text_of(object->subtype) == "GPUMemory") continue;
      numa_objects_.push_back(object);
      machine_.numa.push_back({.os_index = static_cast<int>(object->os_index),
                               .memory = static_cast<std::int64_t>(object->attr->numanode.local_memory),
                               .socket = socket_of(object->cpuset)});
    }
  }

  void read_cores() {
    const bool has_cores = hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_CORE) > 0;
    const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    const hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(topology_);
    for (hwloc_obj_t object = nullptr;
         (object = hwloc_get_next_obj_by_type(topology_, type, object)) != nullptr;) {
      Core core;
      unsigned cpu = 0;
      hwloc_bitmap_foreach_begin(cpu, object->cpuset) core.cpus.push_back(static_cast<int>(cpu));
      hwloc_bitmap_foreach_end();
      core.numa = std::max(0, numa_of(object->cpuset));
      core.socket = std::max(0, socket_of(object->cpuset));
      core.allowed = hwloc_bitmap_isincluded(object->cpuset, allowed) != 0;
      core_sets_.push_back(object->cpuset);
      machine_.cores.push_back(core);
    }
  }

  DeviceLocality locality_of(hwloc_obj_t device) const {
    DeviceLocality locality;
    if (device->type == HWLOC_OBJ_PCI_DEVICE) locality.bus = bus_of(device);
    hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology_, device);
    if (near == nullptr || near->cpuset == nullptr) return locality;
    locality.numa = numa_of(near->cpuset);
    locality.socket = socket_of(near->cpuset);
    if (locality.numa < 0 && locality.socket < 0) return locality;  // the whole machine: nothing is known
    for (std::size_t core = 0; core < core_sets_.size(); ++core) {
      if (hwloc_bitmap_isincluded(core_sets_[core], near->cpuset))
        locality.cores.push_back(static_cast<int>(core));
    }
    return locality;
  }

  void read_pci() {
    std::vector<hwloc_obj_t> devices;  // hwloc's order is that of the NUMA nodes
    for (hwloc_obj_t pci = nullptr; (pci = hwloc_get_next_pcidev(topology_, pci)) != nullptr;)
      devices.push_back(pci);
    const auto address = [](hwloc_obj_t pci) {
      const auto& at = pci->attr->pcidev;
      return std::tuple(at.domain, at.bus, at.dev, at.func);
    };
    std::ranges::sort(devices, {}, address);
    for (hwloc_obj_t pci : devices) {
      if (is_gpu(pci)) read_gpu(pci);
      read_nic(pci);
    }
    if (std::ranges::any_of(machine_.gpus, [](const Gpu& g) { return g.ordinal >= 0; })) return;
    if (annotated_) return;
    for (std::size_t i = 0; i < machine_.gpus.size(); ++i) machine_.gpus[i].ordinal = static_cast<int>(i);
  }

  void read_gpu(hwloc_obj_t pci) {
    Gpu gpu;
    gpu.name = info(pci, attribute::gpu);
    if (gpu.name.empty()) gpu.name = info(pci, "PCIDevice");
    if (gpu.name.empty())
      gpu.name = fmt::format("GPU {:04x}:{:04x}", pci->attr->pcidev.vendor_id, pci->attr->pcidev.device_id);
    gpu.locality = locality_of(pci);
    annotated_ = annotated_ || !info(pci, attribute::ordinal).empty();
    gpu.ordinal = parse_number<int>(info(pci, attribute::ordinal)).value_or(-1);
    gpu.nvlinks = parse_number<int>(info(pci, attribute::nvlinks)).value_or(0);
    gpu.nvlink_version = parse_number<int>(info(pci, attribute::nvlink_version)).value_or(0);
    const std::string peers = info(pci, attribute::nvlink_peers);
    gpu.nvswitch = peers == "switch";
    for (std::size_t at = 0; !gpu.nvswitch && at < peers.size();) {
      const std::size_t end = std::min(peers.find(',', at), peers.size());
      gpu.nvlink_peers.push_back(peers.substr(at, end - at));
      at = end + 1;
    }
    machine_.gpus.push_back(std::move(gpu));
    gpu_objects_.push_back(pci);
  }

  /// What the OS devices of one PCI function tell.
  static void read_os_device(hwloc_obj_t device, Nic& nic) {
    const bool rdma = device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS;
    if (!rdma && device->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK) return;
    (rdma ? nic.device : nic.interface) = text_of(device->name);
    const std::string rate = info(device, attribute::rate);
    if (rdma || nic.rate == 0) nic.rate = rate.empty() ? nic.rate : std::atof(rate.c_str());
    if (!rdma) nic.address = info(device, attribute::address);
    if (rdma) nic.kind = NicKind::roce;
    if (rdma) nic.port = parse_number<int>(info(device, attribute::port)).value_or(1);
    const std::string state = info(device, attribute::state), port = info(device, "Port1State");
    if (rdma || nic.device.empty()) nic.up = state.empty() ? port.empty() || port == "4" : state == "up";
    if (rdma && info(device, attribute::link_layer) == "InfiniBand") nic.kind = NicKind::infiniband;
  }

  /// An interface over InfiniBand: its address has 20 octets, not 6. Files of lstopo do not tell a port's
  /// link layer, and older NICs are no InfiniBand controllers by their PCI class.
  static bool is_over_infiniband(hwloc_obj_t device) {
    const std::string address = info(device, "Address");
    return device->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && std::ranges::count(address, ':') == 19;
  }

  void read_nic(hwloc_obj_t pci) {
    Nic nic;
    constexpr unsigned infiniband_class = 0x0207;
    bool infiniband = pci->attr->pcidev.class_id == infiniband_class, link_layer_told = false;
    for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
      if (child->type != HWLOC_OBJ_OS_DEVICE) continue;
      read_os_device(child, nic);
      infiniband = infiniband || is_over_infiniband(child);
      link_layer_told = link_layer_told || !info(child, attribute::link_layer).empty();
    }
    if (nic.name().empty()) return;
    if (!nic.device.empty() && infiniband && !link_layer_told) nic.kind = NicKind::infiniband;
    nic.locality = locality_of(pci);
    machine_.nics.push_back(std::move(nic));
    nic_objects_.push_back(pci);
  }

  /// Interfaces that hang on no PCI device: Misc objects of annotate_network.
  void read_plain_interfaces() {
    hwloc_obj_t root = hwloc_get_root_obj(topology_);
    for (hwloc_obj_t misc = root->misc_first_child; misc != nullptr; misc = misc->next_sibling) {
      if (info(misc, attribute::state).empty()) continue;
      Nic nic;
      nic.interface = text_of(misc->name);
      nic.rate = std::atof(info(misc, attribute::rate).c_str());
      nic.up = info(misc, attribute::state) != "down";
      nic.address = info(misc, attribute::address);
      machine_.nics.push_back(std::move(nic));
      nic_objects_.push_back(nullptr);
    }
  }

  /// The nearest object above both. (hwloc's own goes by depths, which devices do not have.)
  static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b) {
    std::set<hwloc_obj_t> above;
    for (hwloc_obj_t object = a; object != nullptr; object = object->parent) above.insert(object);
    while (!above.contains(b)) b = b->parent;
    return b;
  }

  /// Bridges between a device and its ancestor.
  static int bridges_below(hwloc_obj_t device, hwloc_obj_t ancestor) {
    int bridges = 0;
    for (hwloc_obj_t object = device->parent; object != ancestor; object = object->parent) ++bridges;
    return bridges;
  }

  PathType path(hwloc_obj_t a, hwloc_obj_t b, const DeviceLocality& locality_a,
                const DeviceLocality& locality_b) const {
    if (b == nullptr) return PathType::system;
    hwloc_obj_t common = common_ancestor(a, b);
    if (common->type == HWLOC_OBJ_BRIDGE) {
      if (common->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) return PathType::host_bridge;
      // One switch is two bridges: its upstream port, which is common, and a downstream port for each device.
      const bool one_switch = bridges_below(a, common) <= 1 && bridges_below(b, common) <= 1;
      return one_switch ? PathType::pcie_switch : PathType::pcie_switches;
    }
    if (locality_a.numa >= 0 && locality_a.numa == locality_b.numa) return PathType::numa;
    return locality_a.socket >= 0 && locality_a.socket == locality_b.socket ? PathType::socket
                                                                            : PathType::system;
  }

  hwloc_topology_t topology_;
  Machine machine_;
  bool annotated_ = false;
  std::vector<hwloc_obj_t> numa_objects_, gpu_objects_, nic_objects_;
  std::vector<hwloc_const_cpuset_t> core_sets_;
};

/// What an XML text says; nothing where hwloc cannot read it.
std::optional<Machine> take_apart(const std::string& xml, const std::string& path) {
  const Hwloc topology = make_hwloc(path);
  if (hwloc_topology_set_xmlbuffer(topology.get(), xml.c_str(), static_cast<int>(xml.size()) + 1) != 0 ||
      hwloc_topology_load(topology.get()) != 0)
    return std::nullopt;
  return HwlocReader(topology.get()).read();
}

/// What any machine's description needs at most of memory. And what a copy gets: hwloc goes on with wrong
/// sets where it gets none, and asks for no more than 512 MiB at once (a set with an index of 2³²). So
/// whatever failed in a copy, it had taken more than a description needs.
constexpr std::uint64_t enough_memory = std::uint64_t{128} << 20;
constexpr std::uint64_t copy_memory = enough_memory + (std::uint64_t{512} << 20);

/// Bytes of address space of this process: "VmSize:" now, "VmPeak:" the most.
std::uint64_t address_space(const char* which) {
  const std::string status = read_text("/proc/self/status");
  const std::size_t at = status.find(which);
  return at == status.npos ? 0 : std::strtoull(status.c_str() + at + std::strlen(which), nullptr, 10) << 10;
}

/// Some seconds and some memory. And an end without a trace.
void limit_process([[maybe_unused]] std::uint64_t memory) {
  for (const int crash : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV}) std::signal(crash, SIG_DFL);
  constexpr rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  constexpr rlimit seconds{10, 10};
  ::setrlimit(RLIMIT_CPU, &seconds);
#ifndef __SANITIZE_ADDRESS__  // takes terabytes, and may take more
  const rlimit most{memory, RLIM_INFINITY};
  ::setrlimit(RLIMIT_AS, &most);
#endif
}

/// What `body` says in a copy of this process, whose output nobody sees; false where that ends otherwise.
template <class Body>
bool survives(const Body& body) {
  const pid_t copy = ::fork();
  require(copy >= 0, "cannot start a process: {}", std::strerror(errno));
  if (copy == 0) {
    const std::uint64_t before = address_space("VmSize:");
    limit_process(before + copy_memory);
    if (const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC); nothing >= 0) {
      ::dup2(nothing, STDOUT_FILENO);
      ::dup2(nothing, STDERR_FILENO);
    }
    try {
      const bool good = body() && address_space("VmPeak:") <= before + enough_memory;
      std::_Exit(good ? 0 : 1);
    } catch (...) {
      std::_Exit(1);
    }
  }
  int status = 0;
  while (::waitpid(copy, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::string bus_of(hwloc_obj_t pci) {
  const auto& at = pci->attr->pcidev;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.dev, at.func);
}

Description describe_this_machine() {
  const Hwloc topology = make_hwloc("this machine");
  require(hwloc_topology_load(topology.get()) == 0, "this machine: hwloc cannot describe it");
  annotate_network(topology.get());
  annotate_gpus(topology.get());
  annotate_software(topology.get());
  char* text = nullptr;
  int length = 0;
  require(hwloc_topology_export_xmlbuffer(topology.get(), &text, &length, 0) == 0,
          "this machine: hwloc cannot write its description");
  Description description{.machine = HwlocReader(topology.get()).read(), .xml = text};
  hwloc_free_xmlbuffer(topology.get(), text);
  return description;
}

Machine read_machine(const std::string& path, const std::string& host) {
  const std::string xml = read_text(path, kinds::hwloc);
  std::optional<Machine> read;
  // hwloc 2.9 crashes on some files and takes gigabytes for others: a limited copy of this process goes
  // first.
  if (survives([&] { return take_apart(xml, path).has_value(); })) read = take_apart(xml, path);
  require(read.has_value(),
          "{}: hwloc {}.{} cannot read it; write one with 'annulus-topology --save' or 'lstopo FILE.xml'",
          path, HWLOC_API_VERSION >> 16, (HWLOC_API_VERSION >> 8) & 0xff);
  Machine machine = *std::move(read);
  if (!host.empty()) machine.host = host;
  if (machine.host.empty()) machine.host = std::filesystem::path(path).stem().string();
  return machine;
}

}  // namespace annulus::machine
