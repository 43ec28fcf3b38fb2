#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/transport.hpp>

namespace annulus::comm {

/// Which GPU a rank computes on, whatever number the rank knows it by: launchers often let each rank see one
/// GPU alone, which then is number 0 for all of them. Plain characters, since ranks send it as bytes.
struct GpuId {
  std::array<char, 16> bus{};      ///< its PCI address; empty: the rank has no GPU
  std::array<char, 64> machine{};  ///< two ranks with one text run on one machine
  std::array<char, 64> node{};     ///< what NCCL takes for the machine (NCCL_HOSTID)
  char nccl = 0;                   ///< 1: the rank's program was built with NCCL

  std::string_view bus_text() const { return bus.data(); }
  std::string_view machine_text() const { return machine.data(); }
  std::string_view node_text() const { return node.data(); }
};

/// "GPU 0000:1b:00.0 of node7"; "CPU of node7" where the rank does not compute on a GPU.
std::string device_text(const GpuId& rank, bool on_gpu);

/// The GPUs of all ranks. Collective over `control`, which carries memory of the host.
std::vector<GpuId> gather_gpu_ids(Communicator& control);

/// The first two ranks that compute on one GPU, the lower first.
std::optional<std::pair<int, int>> sharing_a_gpu(std::span<const GpuId> ranks);

/// The first two ranks that compute on one GPU and that NCCL refuses, the lower first: it takes both to be on
/// one machine. Where NCCL_HOSTID makes one machine stand for several nodes, ranks of different nodes may
/// take turns on a GPU.
std::optional<std::pair<int, int>> sharing_a_gpu_of_a_node(std::span<const GpuId> ranks);

/// What Transport::automatic stands for, and why.
struct TransportChoice {
  Transport transport = Transport::mpi;
  std::string reason;  ///< "ranks 0 and 1 share the GPU 0000:1b:00.0 of node7"
};
TransportChoice choose_transport(std::span<const GpuId> ranks);

}  // namespace annulus::comm
