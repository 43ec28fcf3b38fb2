#include "cluster/machine/environment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <set>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/parse_number.hpp"

namespace annulus::machine {
namespace {

/// Collects settings, and keeps what is set already.
class Collector {
 public:
  explicit Collector(const Variables& variables) : variables_(variables) {}

  void set(const std::string& name, std::string value, std::string why) {
    if (value.empty()) return;
    if (auto before = variables_(name)) {
      settings.push_back({name, *std::move(before), "was set before, and stays", true});
    } else {
      settings.push_back({name, std::move(value), std::move(why)});
    }
  }

  std::vector<EnvironmentSetting> settings;

 private:
  const Variables& variables_;
};

const Nic& nic_at(const Machine& machine, int index) {
  return machine.nics[index];
}

/// The network part of "10.0.0.7/24"; empty without an address.
std::string network_of(const std::string& address) {
  unsigned a = 0, b = 0, c = 0, d = 0, bits = 0;
  if (std::sscanf(address.c_str(), "%u.%u.%u.%u/%u", &a, &b, &c, &d, &bits) != 5 || bits > 32) return {};
  const std::uint32_t all = a << 24 | b << 16 | c << 8 | d;
  return fmt::format("{:x}/{}", bits == 0 ? 0 : all >> (32 - bits), bits);
}

bool in_networks_of_their_own(const Machine& machine, const std::vector<int>& nics) {
  std::set<std::string> networks;
  for (const int index : nics) networks.insert(network_of(nic_at(machine, index).address));
  return networks.size() == nics.size() && !networks.contains("");
}

void set_gpus(const Machine& machine, const NodeResources& resources, const RankBinding& rank,
              Collector& to) {
  std::vector<int> ordinals;
  for (int i = 0; i < rank.local_ranks; ++i)
    ordinals.push_back(resources.gpus.empty() ? i : machine.gpus[resources.gpus[i]].ordinal);
  to.set("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPUs are numbered as this program and Slurm number them");
  to.set("CUDA_VISIBLE_DEVICES", fmt::format("{}", fmt::join(ordinals, ",")),
         "local rank i takes entry i; all are shown, as GPUs of one node reach each other directly");
}

void set_cross_nic(const Machine& machine, const NodeResources& resources, const Profile& profile,
                   Collector& to) {
  if (resources.nics.size() < 2) return;
  if (profile.fabric == Fabric::rails) {
    to.set("NCCL_CROSS_NIC", "0",
           "NIC i of a node meets NIC i of the others on their own switches (fabric = rails)");
  } else if (profile.fabric == Fabric::flat) {
    to.set("NCCL_CROSS_NIC", "1", "every NIC reaches every other alike (fabric = flat)");
  } else if (in_networks_of_their_own(machine, resources.nics)) {
    to.set("NCCL_CROSS_NIC", "0", "each NIC is in an IP network of its own");
  }
}

/// The rank's own NICs. Where Ethernet NICs are in networks of their own, a rank of another NIC could not
/// be reached by these alone.
void set_ucx_nics(const Machine& machine, const NodeResources& resources, const RankBinding& rank,
                  const Profile& profile, Collector& to) {
  const bool apart = nic_at(machine, resources.nics.front()).kind == NicKind::roce &&
                     profile.fabric != Fabric::flat && in_networks_of_their_own(machine, resources.nics);
  std::vector<int> nics = rank.nics;
  if (apart) {
    nics.resize(resources.nics.size());
    std::iota(nics.begin(), nics.end(), 0);
  }
  std::vector<std::string> names;
  for (const int index : nics) {
    const Nic& nic = resources.nic(machine, index);
    names.push_back(fmt::format("{}:{}", nic.device, nic.port));
  }
  to.set("UCX_NET_DEVICES", fmt::format("{}", fmt::join(names, ",")),
         apart ? "each NIC is in a network of its own: UCX takes the one that reaches the other rank"
               : fmt::format("the nearest {} to {} ({})", names.size() == 1 ? "NIC" : "NICs",
                             rank.gpu >= 0 ? "this rank's GPU" : "this rank's cores", name_of(rank.path)));
}

/// Interfaces for TCP: those of the profile, else those of the NICs that have an address, else the fastest
/// with one.
std::vector<std::string> tcp_interfaces(const Machine& machine, const NodeResources& resources,
                                        const Profile& profile) {
  if (!profile.interfaces.empty()) return profile.interfaces;
  std::vector<std::string> names;
  for (const int index : resources.nics) {
    if (const Nic& nic = nic_at(machine, index); !nic.interface.empty() && !nic.address.empty())
      names.push_back(nic.interface);
  }
  if (!names.empty()) return names;
  double most = 0;
  for (const Nic& nic : machine.nics) {
    if (nic.up && !nic.address.empty()) most = std::max(most, nic.rate);
  }
  for (const Nic& nic : machine.nics) {
    if (nic.up && !nic.address.empty() && nic.rate >= most) names.push_back(nic.interface);
  }
  return names;
}

void set_nics(const Machine& machine, const NodeResources& resources, const RankBinding& rank,
              const Profile& profile, Collector& to) {
  const std::vector<std::string> interfaces = tcp_interfaces(machine, resources, profile);
  const std::string tcp = fmt::format("{}", fmt::join(interfaces, ","));
  std::vector<std::string> rdma;
  for (const int index : resources.nics) {
    if (!nic_at(machine, index).device.empty()) rdma.push_back(nic_at(machine, index).device);
  }
  const bool gpus = resources.gpu_count > 0;
  if (gpus) {
    if (!tcp.empty())
      to.set("NCCL_SOCKET_IFNAME", "=" + tcp,
             rdma.empty() ? "there is no RDMA: messages and the rendezvous go over TCP"
                          : "the rendezvous goes over TCP");
    if (!rdma.empty())
      to.set("NCCL_IB_HCA", fmt::format("={}", fmt::join(rdma, ",")),
             "the NICs of the compute fabric; NCCL takes the nearest to each GPU");
    set_cross_nic(machine, resources, profile, to);
  }
  if (rdma.empty() || rank.nics.empty())
    to.set("UCX_NET_DEVICES", tcp,
           "there is no RDMA NIC: UCX takes the interface that reaches the other rank");
  else
    set_ucx_nics(machine, resources, rank, profile, to);
  to.set("OMPI_MCA_btl_tcp_if_include", tcp,
         "Open MPI's TCP would try every network of the node, the containers' too");
}

/// Cores behind the logical CPUs that the launch gives each rank (--cpus-per-task), which may be fewer than
/// the rank's share of the node; 0 without a launch.
std::size_t launched_cores(const Machine& machine, const RankBinding& rank, const Variables& variables) {
  const auto text = variables("ANNULUS_CPUS_PER_RANK");
  if (!text) return 0;
  const std::size_t cpus = parse_number<std::size_t>(*text).value_or(0);
  require(cpus > 0,
          "ANNULUS_CPUS_PER_RANK='{}' is not a positive number of logical CPUs: correct or unset it", *text);
  return ceil_divide(cpus * rank.cores.size(), cpus_of(machine, rank).size());
}

void set_cores(const Machine& machine, const RankBinding& rank, const Variables& variables, Collector& to) {
  if (rank.cores.empty()) return;
  const std::string of = rank.gpu >= 0 ? "near this rank's GPU" : "of the node";
  const std::size_t launched = launched_cores(machine, rank, variables);
  if (launched > 0 && launched < rank.cores.size())
    to.set("OMP_NUM_THREADS", fmt::to_string(launched),
           fmt::format("cores of the {} logical CPUs that the launch gives each rank",
                       *variables("ANNULUS_CPUS_PER_RANK")));
  else
    to.set("OMP_NUM_THREADS", fmt::to_string(rank.cores.size()),
           rank.shared ? "there are fewer cores than ranks"
                       : fmt::format("this rank's share of the cores {}", of));
  if (!rank.shared) {
    to.set("OMP_PLACES", "cores", "one thread a core");
    to.set("OMP_PROC_BIND", "close", "threads stay on this rank's cores");
  }
  to.set("ANNULUS_CPUS", list_text(cpus_of(machine, rank)), "this rank is bound to these logical CPUs");
  to.set("ANNULUS_MEMORY_NODES", list_text(memory_of(machine, rank)),
         "its memory comes from these NUMA nodes");
}

}  // namespace

std::vector<EnvironmentSetting> settings_of(const Machine& machine, const NodeResources& resources,
                                            const RankBinding& rank, const Profile& profile,
                                            const Variables& variables) {
  Collector to(variables);
  if (resources.gpu_count >= rank.local_ranks) set_gpus(machine, resources, rank, to);
  set_cores(machine, rank, variables, to);
  set_nics(machine, resources, rank, profile, to);
  for (const auto& [name, value] : profile.environment) {
    // The site's word goes before what was derived, not before the user's.
    std::erase_if(to.settings, [&name = name](const EnvironmentSetting& setting) {
      return setting.name == name && !setting.kept;
    });
    const auto same = [&name = name](const EnvironmentSetting& setting) { return setting.name == name; };
    if (std::none_of(to.settings.begin(), to.settings.end(), same))
      to.set(name, value, "the site's profile says so");
  }
  return to.settings;
}

}  // namespace annulus::machine
