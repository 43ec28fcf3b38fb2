// What hwloc does not tell of NICs: rate, state, IPv4 address; and interfaces without a PCI device.
#include <fmt/format.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "cluster/machine/hwloc_topology.hpp"

namespace annulus::machine {
namespace {

namespace fs = std::filesystem;

/// The first line of a file of sysfs; empty when it cannot be read (as the speed of a NIC that is down).
std::string line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::map<std::string, std::string> ipv4_addresses() {
  std::map<std::string, std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr || entry->ifa_addr->sa_family != AF_INET)
      continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in*>(entry->ifa_netmask);
    char text[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text);
    addresses.emplace(entry->ifa_name, fmt::format("{}/{}", text, std::popcount(mask->sin_addr.s_addr)));
  }
  ::freeifaddrs(list);
  return addresses;
}

void annotate_interface(hwloc_obj_t object, const std::string& name, const std::string& address) {
  const fs::path folder = fs::path("/sys/class/net") / name;
  const std::string state = line_of(folder / "operstate"), speed = line_of(folder / "speed");
  // Virtual interfaces do not know their state; the carrier says whether there is another end.
  const bool up = state == "up" || (state == "unknown" && line_of(folder / "carrier") == "1");
  add_info(object, attribute::state, up ? "up" : "down");
  if (const double megabits = std::atof(speed.c_str()); megabits > 0)
    add_info(object, attribute::rate, fmt::format("{:.0f}", megabits * 1e6));
  add_info(object, attribute::address, address);
}

/// The port of an RDMA device that is up, else its first.
void annotate_rdma(hwloc_obj_t object) {
  fs::path chosen;
  std::error_code ignored;
  for (const auto& port :
       fs::directory_iterator(fs::path("/sys/class/infiniband") / object->name / "ports", ignored)) {
    const bool up = line_of(port.path() / "state").starts_with("4");  // "4: ACTIVE"
    if (chosen.empty() || up) chosen = port.path();
    if (up) break;
  }
  if (chosen.empty()) return;
  add_info(object, attribute::port, chosen.filename().string());
  add_info(object, attribute::state, line_of(chosen / "state").starts_with("4") ? "up" : "down");
  add_info(object, attribute::link_layer, line_of(chosen / "link_layer"));
  if (const double gigabits = std::atof(line_of(chosen / "rate").c_str());
      gigabits > 0)  // "400 Gb/sec (4X NDR)"
    add_info(object, attribute::rate, fmt::format("{:.0f}", gigabits * 1e9));
}

/// Interfaces that carry no messages between nodes: the loopback, bridges and what is plugged into them
/// (containers'), the members of a bond, tunnels.
bool is_internal(const fs::path& folder) {
  for (const char* mark : {"bridge", "brport", "bonding_slave", "tun_flags"}) {
    if (fs::exists(folder / mark)) return true;
  }
  constexpr int ethernet = 1, infiniband = 32;  // ARPHRD_*
  const int type = std::atoi(line_of(folder / "type").c_str());
  return type != ethernet && type != infiniband;
}

}  // namespace

void annotate_network(hwloc_topology_t topology) {
  const auto addresses = ipv4_addresses();
  const auto address_of = [&](const std::string& name) {
    const auto found = addresses.find(name);
    return found == addresses.end() ? std::string() : found->second;
  };
  std::set<std::string> known;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(topology, device)) != nullptr;) {
    if (device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS) annotate_rdma(device);
    if (device->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK) continue;
    annotate_interface(device, device->name, address_of(device->name));
    known.insert(device->name);
  }
  std::set<std::string> others;  // sorted by name
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/class/net", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!known.contains(name) && !address_of(name).empty() && !is_internal(entry.path())) others.insert(name);
  }
  for (const std::string& name : others) {
    hwloc_obj_t misc =
        hwloc_topology_insert_misc_object(topology, hwloc_get_root_obj(topology), name.c_str());
    if (misc != nullptr) annotate_interface(misc, name, address_of(name));
  }
}

}  // namespace annulus::machine
