#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// What nodes are made of: processors, GPUs, NICs, and how ranks are put on them.
namespace annulus::machine {

/// What a NIC speaks.
enum class NicKind : std::uint8_t { infiniband, roce, ethernet };
std::string_view name_of(NicKind kind);

/// How the NICs of different nodes meet.
enum class Fabric : std::uint8_t {
  unknown,
  rails,  ///< NIC i of a node shares its switches with NIC i of the others; other NICs are farther or out
          ///< of reach
  flat    ///< every NIC reaches every other alike
};
std::string_view name_of(Fabric fabric);

/// What a site says of one type of node (docs/formats/site-profile.md). 0, empty and unknown: not said.
struct Profile {
  std::string description;

  int sockets = 0;
  int numa = 0;                  ///< NUMA nodes with memory of the host
  int cores = 0;                 ///< physical cores
  int gpus = -1;                 ///< −1: not said; 0: none
  std::vector<std::string> gpu;  ///< the GPUs' name has one of these in it
  bool gpus_assumed = false;     ///< Slurm hands out GPUs that are not there (a lab)

  int nics = 0;                         ///< NICs of the compute fabric: the NICs of a node that ranks use
  std::vector<std::string> devices;     ///< their names as RDMA devices, NIC by NIC
  std::vector<std::string> interfaces;  ///< IP interfaces for rendezvous and TCP
  std::optional<NicKind> kind;          ///< of the NICs
  double rate = 0;                      ///< of one NIC, bit/s
  Fabric fabric = Fabric::unknown;

  int ranks_per_node = 0;  ///< 0: one a GPU; without GPUs one a NUMA node

  std::vector<std::pair<std::string, std::string>> environment;  ///< variables of the site, set as they stand

  friend bool operator==(const Profile&, const Profile&) = default;
};

/// Reads a site profile. Throws Error that names file, line, key and remedy.
Profile read_profile(const std::filesystem::path& path);

/// Reads the text of a site profile; `origin` stands for the file in messages.
Profile parse_profile(std::string_view text, std::string_view origin);

}  // namespace annulus::machine
