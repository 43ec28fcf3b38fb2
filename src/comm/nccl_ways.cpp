#include "comm/nccl_ways.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <annulus/core/tensor.hpp>

#include "comm/nccl_link.hpp"

namespace annulus::comm {

namespace {

/// Where the GPU of a rank is. Plain characters: ranks send it as bytes.
struct Place {
  std::array<char, 16> bus{};
  std::array<char, 64> machine{};
  std::array<char, 64> node{};  ///< what NCCL takes for the machine
};

std::string_view text(const auto& characters) {
  return characters.data();
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) != "0" && *value != '\0';
}

Place place_of(int device) {
  Place place;
  ANNULUS_CUDA_CALL(cudaDeviceGetPCIBusId, place.bus.data(), static_cast<int>(place.bus.size()), device);
  gethostname(place.machine.data(), place.machine.size() - 1);
  place.node = place.machine;
  if (const char* id = std::getenv("NCCL_HOSTID"); id != nullptr && *id != '\0') {
    place.node = {};
    std::string_view(id).copy(place.node.data(), place.node.size() - 1);
  }
  return place;
}

/// An index into `kinds`.
int way(const Place& mine, const Place& other, int device) {
  if (text(mine.node) != text(other.node) || text(mine.machine) != text(other.machine)) return 3;
  int peer = 0, access = 0, atomics = 0;
  const bool visible = cudaDeviceGetByPCIBusId(&peer, other.bus.data()) == cudaSuccess;
  if (!visible) static_cast<void>(cudaGetLastError());  // a GPU that this process does not see: no error
  if (is_set("NCCL_P2P_DISABLE")) return is_set("NCCL_SHM_DISABLE") ? 3 : 2;
  if (!visible) return 4;
  cudaDeviceCanAccessPeer(&access, device, peer);
  if (access == 0) return is_set("NCCL_SHM_DISABLE") ? 3 : 2;
  // Atomics in another GPU's memory: NVLink has them, PCIe has not.
  cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer);
  return atomics != 0 ? 0 : 1;
}
constexpr std::array kinds = {"NVLink", "PCIe peer-to-peer", "shared memory", "network",
                              "this machine (a GPU that this rank does not see)"};

}  // namespace

std::string nccl_ways(Communicator& control, int device) {
  const Place mine = place_of(device);
  std::vector<Place> all(static_cast<std::size_t>(control.size()));
  control.all_gather(HostExec(), &mine, all.data(), sizeof mine);
  std::array<int, kinds.size()> ranks{};
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      require(text(all[a].bus) != text(all[b].bus) || text(all[a].machine) != text(all[b].machine),
              "NCCL: ranks {} and {} both use the GPU {} of {}: start one rank a GPU, or use the transport "
              "mpi",
              b, a, text(all[a].bus), text(all[a].machine));
    }
    if (static_cast<int>(a) != control.rank()) ++ranks[static_cast<std::size_t>(way(mine, all[a], device))];
  }
  std::string result;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    if (ranks[kind] == 0) continue;
    result += fmt::format("{}{} to {} {}", result.empty() ? "" : ", ", kinds[kind], ranks[kind],
                          ranks[kind] == 1 ? "rank" : "ranks");
  }
  return result.empty() ? "one rank" : result;
}

}  // namespace annulus::comm
