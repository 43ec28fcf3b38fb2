#include "attention/comm/nccl/paths.hpp"

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/gpu_ids.hpp"
#include "attention/comm/nccl/link.hpp"

namespace annulus::comm {

namespace {

/// An index into `kinds`.
int way(const GpuId& mine, const GpuId& other, int device) {
  if (mine.node_text() != other.node_text() || mine.machine_text() != other.machine_text()) return 3;
  int peer = 0, access = 0, atomics = 0;
  const bool visible = ANNULUS_GPU(DeviceGetByPCIBusId)(&peer, other.bus.data()) == ANNULUS_GPU(Success);
  if (!visible)
    static_cast<void>(ANNULUS_GPU(GetLastError)());  // a GPU that this process does not see: no error
  if (is_set("NCCL_P2P_DISABLE")) return is_set("NCCL_SHM_DISABLE") ? 3 : 2;
  if (!visible) return 4;
  static_cast<void>(ANNULUS_GPU(DeviceCanAccessPeer)(&access, device, peer));
  if (access == 0) return is_set("NCCL_SHM_DISABLE") ? 3 : 2;
  // Atomics in another GPU's memory: NVLink has them, PCIe has not.
  static_cast<void>(ANNULUS_GPU(DeviceGetP2PAttribute)(&atomics, ANNULUS_GPU(DevP2PAttrNativeAtomicSupported),
                                                       device, peer));
  return atomics != 0 ? 0 : 1;
}
constexpr std::array kinds = {"NVLink", "PCIe peer-to-peer", "shared memory", "network",
                              "this machine (a GPU that this rank does not see)"};

}  // namespace

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) != "0" && *value != '\0';
}

std::string nccl_paths(Communicator& control, int device) {
  const std::vector<GpuId> all = gather_gpu_ids(control);
  if (const auto both = sharing_a_gpu_of_a_node(all)) {
    const GpuId& place = all[static_cast<std::size_t>(both->first)];
    fail("NCCL: ranks {} and {} both use the GPU {} of {}: start one rank per GPU, or use the transport mpi",
         both->first, both->second, place.bus_text(), place.node_text());
  }
  const auto me = static_cast<std::size_t>(control.rank());
  std::array<int, kinds.size()> ranks{};
  for (std::size_t other = 0; other < all.size(); ++other) {
    if (other != me) ++ranks[static_cast<std::size_t>(way(all[me], all[other], device))];
  }
  std::string result;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    if (ranks[kind] == 0) continue;
    result += fmt::format("{}{} to {} {}", result.empty() ? "" : ", ", kinds[kind], ranks[kind],
                          ranks[kind] == 1 ? "rank" : "ranks");
  }
  if (const auto both =
          sharing_a_gpu(all)) {  // on emulated nodes: what is timed there is the taking of turns
    result += fmt::format(", ranks share a GPU (the first two: {} and {})", both->first, both->second);
  }
  return result.empty() ? "one rank" : result;
}

}  // namespace annulus::comm
