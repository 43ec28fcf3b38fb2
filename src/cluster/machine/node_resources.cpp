#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <set>

#include <annulus/base/division.hpp>

#include "cluster/machine/placement.hpp"
#include "cluster/machine/text.hpp"

namespace annulus::machine {
namespace {

bool contains(std::string text, std::string part) {
  const auto lower = [](unsigned char c) { return static_cast<char>(std::tolower(c)); };
  std::transform(text.begin(), text.end(), text.begin(), lower);
  std::transform(part.begin(), part.end(), part.begin(), lower);
  return text.find(part) != text.npos;
}

void choose_gpus(const Machine& machine, const Profile& profile, NodeResources& resources, NodeCheck& check) {
  if (profile.gpus_assumed) {
    resources.gpu_count = profile.gpus;
    return;
  }
  std::vector<std::string> hidden;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    if (machine.gpus[i].ordinal >= 0)
      resources.gpus.push_back(static_cast<int>(i));
    else
      hidden.push_back(machine.gpus[i].locality.bus);
  }
  resources.gpu_count = static_cast<int>(resources.gpus.size());
  if (!hidden.empty())
    check.warning(
        "GPUs {} are there, but not shown to this process: "
        "ask for all of a node (--gpus-per-node={}, --gpu-bind=none)",
        fmt::join(hidden, ", "), machine.gpus.size());
  const int found = static_cast<int>(machine.gpus.size());
  if (profile.gpus == 0 && found > 0)
    check.warning("{} GPUs, but the profile is one of nodes without: take the profile of this node type",
                  found);
  check.count("GPUs", found, profile.gpus);
  for (const Gpu& gpu : machine.gpus) {
    const auto promised = [&](const std::string& name) { return contains(gpu.name, name); };
    if (profile.gpu.empty() || std::ranges::any_of(profile.gpu, promised)) continue;
    check.error("GPU {} is a '{}', but the profile promises {}: take the profile of this node type",
                gpu.locality.bus, gpu.name, fmt::join(profile.gpu, " or "));
    break;
  }
}

/// The NICs that the profile names, in its order.
std::vector<int> named_nics(const Machine& machine, const Profile& profile, NodeCheck& check) {
  std::vector<int> nics;
  const bool rdma = !profile.devices.empty();
  for (const std::string& name : rdma ? profile.devices : profile.interfaces) {
    const auto found = std::ranges::find_if(
        machine.nics, [&](const Nic& nic) { return (rdma ? nic.device : nic.interface) == name; });
    if (found == machine.nics.end()) {
      std::vector<std::string> known;
      for (const Nic& nic : machine.nics) known.push_back(nic.name());
      check.error(
          "there is no NIC {}, which the profile names; there are {}: "
          "correct network.{} of the profile",
          name, known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")),
          rdma ? "devices" : "interfaces");
      continue;
    }
    if (!found->up)
      check.error("NIC {} of the profile is down: have it mended, or leave the node out (--exclude={})", name,
                  machine.host);
    nics.push_back(static_cast<int>(found - machine.nics.begin()));
  }
  return nics;
}

/// Interfaces that the profile names for TCP alone.
void check_interfaces(const Machine& machine, const Profile& profile, NodeCheck& check) {
  for (const std::string& name : profile.interfaces) {
    const auto same = [&](const Nic& nic) { return nic.interface == name; };
    if (std::ranges::none_of(machine.nics, same))
      check.error(
          "there is no interface {} with an address, which the profile names: correct network.interfaces of "
          "the profile",
          name);
  }
}

/// The fastest of some NICs; those whose rate is not known count as slow as the slowest.
std::vector<int> fastest(const Machine& machine, const std::vector<int>& nics) {
  double most = 0;
  for (const int index : nics) most = std::max(most, machine.nics[index].rate);
  std::vector<int> result;
  for (const int index : nics) {
    if (machine.nics[index].rate >= most) result.push_back(index);
  }
  return result;
}

std::vector<int> found_nics(const Machine& machine, const Profile& profile) {
  std::vector<int> rdma, plain;
  for (std::size_t i = 0; i < machine.nics.size(); ++i) {
    const Nic& nic = machine.nics[i];
    if (!nic.up || (profile.kind && *profile.kind != NicKind::ethernet && nic.kind != *profile.kind))
      continue;
    if (!nic.device.empty() && profile.kind != NicKind::ethernet) rdma.push_back(static_cast<int>(i));
    if (!nic.interface.empty() && (!nic.address.empty() || !nic.locality.bus.empty()))
      plain.push_back(static_cast<int>(i));
  }
  if (!rdma.empty()) return fastest(machine, rdma);
  // With an address: others cannot be reached by TCP. Files of lstopo know none.
  const auto addressed = [&](int i) { return !machine.nics[i].address.empty(); };
  if (std::ranges::any_of(plain, addressed)) std::erase_if(plain, [&](int i) { return !addressed(i); });
  return fastest(machine, plain);
}

/// Gives each GPU a NIC, nearest pairs first, none more than `most` GPUs; −1 where none is left.
std::vector<int> match(const Machine& machine, const std::vector<int>& gpus, const std::vector<int>& nics,
                       std::size_t most) {
  std::vector<int> of_gpu(gpus.size(), -1);
  std::vector<std::size_t> load(nics.size(), 0);
  for (int path = 0; path <= static_cast<int>(PathType::system); ++path) {
    // Rounds of the load, so that GPUs with several NICs equally near do not crowd on the first.
    for (std::size_t round = 0; round < most; ++round) {
      for (std::size_t g = 0; g < gpus.size(); ++g) {
        for (std::size_t c = 0; c < nics.size() && of_gpu[g] < 0; ++c) {
          const PathType found = machine.paths[gpus[g]][nics[c]];
          if (static_cast<int>(found) != path || load[c] != round) continue;
          of_gpu[g] = static_cast<int>(c);
          ++load[c];
        }
      }
    }
  }
  return of_gpu;
}

void choose_cards(const Machine& machine, const Profile& profile, NodeResources& resources,
                  NodeCheck& check) {
  const bool named =
      !profile.devices.empty() || (profile.kind == NicKind::ethernet && !profile.interfaces.empty());
  std::vector<int> nics = named ? named_nics(machine, profile, check) : found_nics(machine, profile);
  const std::size_t gpus = resources.gpus.size();
  const std::size_t wanted = profile.nics > 0 ? static_cast<std::size_t>(profile.nics) : gpus;
  if (!named && gpus > 0 && nics.size() > wanted && wanted >= gpus) {
    const std::vector<int> of_gpu = match(machine, resources.gpus, nics, 1);
    std::vector<int> kept;
    std::set<std::string> left;
    for (std::size_t c = 0; c < nics.size(); ++c) {
      if (std::ranges::find(of_gpu, static_cast<int>(c)) != of_gpu.end())
        kept.push_back(nics[c]);
      else
        left.insert(machine.nics[nics[c]].name());
    }
    check.warning(
        "{} of {} NICs are taken, the nearest to the GPUs; left are {}: name the compute fabric's in the "
        "profile (network.devices)",
        kept.size(), nics.size(), fmt::join(left, ", "));
    nics = kept;
  }
  if (profile.kind != NicKind::ethernet) check_interfaces(machine, profile, check);
  resources.nics = nics;
  if (!named) check.count("NICs of the compute fabric", static_cast<int>(nics.size()), profile.nics);
  for (const int index : nics) {
    const Nic& nic = machine.nics[index];
    if (profile.rate > 0 && nic.rate > 0 && nic.rate < 0.99 * profile.rate)
      check.error(
          "NIC {} runs at {}, but the profile promises {}: have its cable and port looked at, or leave the "
          "node out (--exclude={})",
          nic.name(), bits_text(nic.rate), bits_text(profile.rate), machine.host);
    if (profile.kind && *profile.kind != NicKind::ethernet && nic.kind != *profile.kind)
      check.error("NIC {} speaks {}, but the profile promises {}: take the profile of this node type",
                  nic.name(), name_of(nic.kind), name_of(*profile.kind));
  }
  if (gpus == 0 || nics.empty()) return;
  resources.nic_of = match(machine, resources.gpus, nics, ceil_divide(gpus, nics.size()));
}

}  // namespace

NodeResources node_resources(const Machine& machine, const Profile& profile) {
  NodeResources resources;
  NodeCheck check(machine, resources.diagnostics);
  choose_gpus(machine, profile, resources, check);
  choose_cards(machine, profile, resources, check);
  check.count("sockets", machine.sockets, profile.sockets);
  check.count("NUMA nodes", static_cast<int>(machine.numa.size()), profile.numa);
  check.count("cores", static_cast<int>(machine.cores.size()), profile.cores);
  return resources;
}

}  // namespace annulus::machine
