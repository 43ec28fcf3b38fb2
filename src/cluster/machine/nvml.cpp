// What NVML tells of NVIDIA's GPUs. Its library comes with the driver: it is looked for when the program
// runs, so that one build serves nodes with and without GPUs. Names and layouts are those of NVML's public
// interface, version 2 and 3.
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "cluster/machine/hwloc_topology.hpp"

namespace annulus::machine {
namespace {

using Device = void*;  // nvmlDevice_t

struct PciInfo {  // nvmlPciInfo_t
  char legacy_bus[16];
  unsigned domain, bus, device, ids, subsystem;
  char bus_text[32];
};

constexpr int success = 0;
constexpr unsigned most_links = 64;  // no device has as many; the library refuses the first that is not there
constexpr unsigned remote_gpu = 0, remote_switch = 2;

/// The functions that are used; `loaded` when all are there and the driver answers.
class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    loaded = load(init, "nvmlInit_v2") && load(shutdown, "nvmlShutdown") &&
             load(count, "nvmlDeviceGetCount_v2") && load(handle, "nvmlDeviceGetHandleByIndex_v2") &&
             load(name, "nvmlDeviceGetName") && load(pci, "nvmlDeviceGetPciInfo_v3") &&
             load(link_state, "nvmlDeviceGetNvLinkState") &&
             load(link_version, "nvmlDeviceGetNvLinkVersion") &&
             load(link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2") && init() == success;
    load(driver, "nvmlSystemGetDriverVersion");
    load(link_remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");  // newer than the others
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (loaded) shutdown();
    if (library_ != nullptr) ::dlclose(library_);
  }

  bool loaded = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*pci)(Device, PciInfo*) = nullptr;
  int (*link_state)(Device, unsigned, unsigned*) = nullptr;
  int (*link_version)(Device, unsigned, unsigned*) = nullptr;
  int (*link_remote)(Device, unsigned, PciInfo*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;
  int (*link_remote_type)(Device, unsigned, unsigned*) = nullptr;

 private:
  template <class Function>
  bool load(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(::dlsym(library_, symbol));
    return function != nullptr;
  }

  void* library_;
};

std::string bus_text(const PciInfo& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

struct NvlinkCount {
  int active = 0;
  unsigned version = 0;
  bool to_switch = false;
  std::vector<std::string> peers;
};

NvlinkCount links_of(const Nvml& nvml, Device device) {
  NvlinkCount links;
  unsigned active = 0;
  for (unsigned link = 0; link < most_links && nvml.link_state(device, link, &active) == success; ++link) {
    if (active == 0) continue;
    ++links.active;
    nvml.link_version(device, link, &links.version);
    unsigned type = remote_gpu;
    if (nvml.link_remote_type != nullptr && nvml.link_remote_type(device, link, &type) == success &&
        type == remote_switch) {
      links.to_switch = true;
      continue;
    }
    PciInfo remote{};
    if (nvml.link_remote(device, link, &remote) == success) links.peers.push_back(bus_text(remote));
  }
  return links;
}

hwloc_obj_t find(hwloc_topology_t topology, const PciInfo& pci) {
  return hwloc_get_pcidev_by_busid(topology, pci.domain, pci.bus, pci.device, 0);
}

}  // namespace

void annotate_gpus(hwloc_topology_t topology) {
  const Nvml nvml;
  unsigned count = 0;
  if (!nvml.loaded || nvml.count(&count) != success) return;
  char driver[96] = {};
  if (nvml.driver != nullptr && nvml.driver(driver, sizeof driver) == success) {
    const std::string key = std::string(attribute::software) + "driver";
    add_info(hwloc_get_root_obj(topology), key.c_str(), driver);
  }
  constexpr unsigned nvidia = 0x10de;
  for (unsigned ordinal = 0; ordinal < count; ++ordinal) {
    Device device = nullptr;
    PciInfo pci{};
    if (nvml.handle(ordinal, &device) != success || nvml.pci(device, &pci) != success) continue;
    hwloc_obj_t object = find(topology, pci);
    if (object == nullptr) continue;
    char name[96] = {};
    if (nvml.name(device, name, sizeof name) == success) add_info(object, attribute::gpu, name);
    add_info(object, attribute::ordinal, fmt::to_string(ordinal));
    const NvlinkCount links = links_of(nvml, device);
    add_info(object, attribute::nvlinks, fmt::to_string(links.active));
    if (links.active == 0) continue;
    add_info(object, attribute::nvlink_version, fmt::to_string(links.version));
    add_info(object, attribute::nvlink_peers,
             links.to_switch ? "switch" : fmt::format("{}", fmt::join(links.peers, ",")));
  }
  // GPUs that the driver does not show this process.
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_pcidev(topology, object)) != nullptr;) {
    const auto& at = object->attr->pcidev;
    if (at.vendor_id == nvidia && at.class_id >> 8 == 0x03 && info(object, attribute::ordinal).empty())
      add_info(object, attribute::ordinal, "-1");
  }
}

}  // namespace annulus::machine
