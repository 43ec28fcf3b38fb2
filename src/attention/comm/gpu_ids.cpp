#include "attention/comm/gpu_ids.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/gpu_runtime.hpp"

namespace annulus::comm {

namespace {

GpuId gpu_place_of_this_rank() {
  GpuId place;
  place.nccl = has_nccl() ? 1 : 0;
#ifdef ANNULUS_GPU_RUNTIME
  ANNULUS_GPU_CALL(DeviceGetPCIBusId, place.bus.data(), static_cast<int>(place.bus.size()), gpu_device());
#endif
  gethostname(place.machine.data(), place.machine.size() - 1);
  place.node = place.machine;
  if (const char* id = std::getenv("NCCL_HOSTID"); id != nullptr && *id != '\0') {
    place.node = {};
    std::string_view(id).copy(place.node.data(), place.node.size() - 1);
  }
  return place;
}

/// The first two ranks with one PCI address at one of the `places`.
std::optional<std::pair<int, int>> sharing(std::span<const GpuId> ranks,
                                           std::string_view (GpuId::*place)() const) {
  std::map<std::pair<std::string_view, std::string_view>, int> owners;  // (place, PCI address)
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].bus_text().empty()) continue;
    const auto [owner, is_first] =
        owners.try_emplace({(ranks[rank].*place)(), ranks[rank].bus_text()}, static_cast<int>(rank));
    if (!is_first) return std::pair(owner->second, static_cast<int>(rank));
  }
  return std::nullopt;
}

}  // namespace

std::string device_text(const GpuId& rank, bool on_gpu) {
  const bool known = on_gpu && !rank.bus_text().empty();
  return fmt::format("{} of {}",
                     known    ? fmt::format("GPU {}", rank.bus_text())
                     : on_gpu ? "GPU"
                              : "CPU",
                     rank.machine_text());
}

std::vector<GpuId> gather_gpu_ids(Communicator& control) {
  const GpuId mine = gpu_place_of_this_rank();
  std::vector<GpuId> all(static_cast<std::size_t>(control.size()));
  control.all_gather(HostExec(), &mine, all.data(), sizeof mine);
  return all;
}

std::optional<std::pair<int, int>> sharing_a_gpu(std::span<const GpuId> ranks) {
  return sharing(ranks, &GpuId::machine_text);
}

std::optional<std::pair<int, int>> sharing_a_gpu_of_a_node(std::span<const GpuId> ranks) {
  return sharing(ranks, &GpuId::node_text);
}

TransportChoice choose_transport(std::span<const GpuId> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const GpuId& place = ranks[rank];
    if (place.bus_text().empty()) {
      return {Transport::mpi, fmt::format("rank {} on {} has no GPU", rank, place.machine_text())};
    }
    if (place.nccl == 0) {
      return {Transport::mpi, fmt::format("rank {} runs a program that was built without NCCL", rank)};
    }
  }
  if (const auto both = sharing_a_gpu(ranks)) {
    const GpuId& place = ranks[static_cast<std::size_t>(both->first)];
    return {Transport::mpi, fmt::format("ranks {} and {} share the GPU {} of {}", both->first, both->second,
                                        place.bus_text(), place.machine_text())};
  }
  return {Transport::nccl, "every rank has a GPU of its own"};
}

}  // namespace annulus::comm
