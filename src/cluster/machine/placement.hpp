#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/machine/machine.hpp"
#include "cluster/machine/profile.hpp"
#include "cluster/topology/job.hpp"

namespace annulus::machine {

/// Collects findings about one node.
class NodeCheck {
 public:
  /// `machine` and `diagnostics` outlive the object.
  NodeCheck(const Machine& machine, std::vector<Diagnostic>& diagnostics)
      : host_(machine.host), findings_(diagnostics) {}

  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) {
    add(true, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> text, Args&&... args) {
    add(false, fmt::format(text, std::forward<Args>(args)...));
  }

  /// A count that the profile promises; 0 is no promise.
  void count(std::string_view what, int found, int promised) {
    if (promised > 0 && found < promised)
      error("{} {}, but the profile promises {}: take the profile of this node type, or have the node mended",
            found, what, promised);
    if (promised > 0 && found > promised)
      warning("{} {}, but the profile knows of {}: take the profile of this node type", found, what,
              promised);
  }

 private:
  void add(bool error, const std::string& text) {
    findings_.push_back({.error = error, .text = fmt::format("{}: {}", host_, text)});
  }

  const std::string& host_;
  std::vector<Diagnostic>& findings_;
};

/// The parts of a node that ranks use.
struct NodeResources {
  std::vector<int> gpus;    ///< indices into Machine::gpus; empty where the profile assumes GPUs
  int gpu_count = 0;        ///< GPUs, assumed ones too
  std::vector<int> nics;    ///< of the compute fabric: indices into Machine::nics
  std::vector<int> nic_of;  ///< (gpus) index into `nics` of each GPU's NIC; empty without GPUs or NICs
  std::vector<Diagnostic> diagnostics;  ///< what is wrong with the node, or differs from the profile

  /// NIC `index` of the compute fabric.
  const Nic& nic(const Machine& machine, int index) const { return machine.nics[nics[index]]; }
};

/// What of a node is to be used. Cards: those that the profile names; else, of the kind it names, the fastest
/// that are up, RDMA before plain interfaces; where there are more than GPUs and the profile does not say how
/// many, those nearest to the GPUs. Each GPU gets the nearest NIC, equally many per NIC.
NodeResources node_resources(const Machine& machine, const Profile& profile);

/// Leaves of the GPUs those that a node's ranks were given. `visible` is what CUDA_VISIBLE_DEVICES says,
/// empty when it is not set; a list that is shorter than `local_ranks` is one rank's own and changes nothing.
/// `given`: GPUs of the job on this node, 0 when that is not known.
void restrict_gpus(const Machine& machine, std::string_view visible, int given, int local_ranks,
                   NodeResources& resources);

/// What one rank of a node uses.
struct RankBinding {
  int local_rank = 0;
  int local_ranks = 1;
  int gpu = -1;                      ///< index into Machine::gpus
  int nic = -1;                      ///< index into NodeResources::nics of the nearest NIC
  std::vector<int> nics;             ///< its NICs: the nearest one, then others that are as near and nobody's
  std::vector<int> cores;            ///< indices into Machine::cores; each rank of the node has its own
  std::vector<int> numa;             ///< indices into Machine::numa of these
  PathType path = PathType::system;  ///< to the NIC
  bool shared = false;               ///< there are fewer cores than ranks: several ranks use the same
};

/// Divides a node among its ranks. Rank i has GPU i; its cores are an equal share of those nearest to the
/// GPU, and without GPUs of all of them, in the machine's order. `bound` lists the logical CPUs that
/// ranks may use; empty: all that the cgroup allows. More ranks than GPUs are
/// placed as if there were none. Each rank has the nearest NIC; where there are several times as many NICs
/// as ranks, those that are as near are divided equally.
std::vector<RankBinding> assign_ranks(const Machine& machine, const NodeResources& resources, int local_ranks,
                                      const std::vector<int>& bound = {});

/// What is wrong with the places of a node's ranks: NICs on the far socket, fewer NICs than ranks, idle
/// GPUs, shared or far cores.
std::vector<Diagnostic> check_ranks(const Machine& machine, const NodeResources& resources,
                                    const std::vector<RankBinding>& ranks);

/// Differences between nodes that are to do equal work: errors that name both. Nothing when they are alike.
std::vector<Diagnostic> check_alike(const std::vector<Machine>& nodes);

/// Puts a rank onto cores to which its launcher has bound it.
void keep_binding(const Machine& machine, const std::vector<int>& bound, RankBinding& rank);

/// Logical CPUs of a rank: the hardware threads of its cores.
std::vector<int> cpus_of(const Machine& machine, const RankBinding& rank);

/// NUMA nodes of a rank, as the system counts.
std::vector<int> memory_of(const Machine& machine, const RankBinding& rank);

}  // namespace annulus::machine
