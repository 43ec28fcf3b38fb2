// Rates by the class of the device, for planning before anything is measured.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include <annulus/machine/environment.hpp>

#include "machine/text.hpp"

namespace annulus::machine {
namespace {

/// Published figures of a GPU: to its peers by NVLink or the like and by PCIe, bytes per second each
/// direction, and dense 16-bit products, FLOP/s.
struct GpuClass {
  std::string_view name;  ///< a part of the GPU's name
  double link, pcie, peak;
};

// Names that contain others come first.
constexpr std::array gpu_classes = {
    GpuClass{"B300", 900e9, 64e9, 2250e12},  GpuClass{"B200", 900e9, 64e9, 2250e12},
    GpuClass{"H200", 450e9, 64e9, 989e12},   GpuClass{"H100 PCIe", 0, 64e9, 756e12},
    GpuClass{"H100", 450e9, 64e9, 989e12},   GpuClass{"H800", 200e9, 64e9, 989e12},
    GpuClass{"H20", 450e9, 64e9, 148e12},    GpuClass{"A100-PCIE", 0, 32e9, 312e12},
    GpuClass{"A100", 300e9, 32e9, 312e12},   GpuClass{"A800", 200e9, 32e9, 312e12},
    GpuClass{"V100", 150e9, 16e9, 125e12},   GpuClass{"L40", 0, 32e9, 181e12},
    GpuClass{"A40", 0, 32e9, 150e12},        GpuClass{"L4", 0, 32e9, 121e12},
    GpuClass{"MI300X", 448e9, 64e9, 1307e12}};
constexpr GpuClass unknown_gpu{"", 0, 32e9, 150e12};

// What of a published figure a long message, or attention, usually reaches.
constexpr double of_nvlink = 0.8, of_pcie = 0.8, of_rdma = 0.9, of_tcp = 0.6;
constexpr double of_peak_forward = 0.6, of_peak_backward = 0.45;  // head_dim 128
constexpr double small_heads = 2.0 / 3;                           // head_dim 64, beside head_dim 128
// Hosts: a rank's messages through shared memory, and attention in f32 on one core.
constexpr double shared_memory = 10e9, core_forward = 40e9, core_backward = 30e9;

const GpuClass& class_of(const std::string& name) {
  const auto found = std::find_if(gpu_classes.begin(), gpu_classes.end(),
                                  [&](const GpuClass& c) { return name.find(c.name) != name.npos; });
  return found == gpu_classes.end() ? unknown_gpu : *found;
}

/// Bytes per second, each direction, of one link.
double rate_of_link(int version) {
  return version >= 5 ? 50e9 : version >= 2 ? 25e9 : 20e9;
}

/// The links of the GPU reach every other GPU of the node.
bool reaches_all(const Machine& machine, const Gpu& gpu) {
  if (gpu.nvswitch) return true;
  return std::all_of(machine.gpus.begin(), machine.gpus.end(), [&](const Gpu& other) {
    return &other == &gpu || std::find(gpu.nvlink_peers.begin(), gpu.nvlink_peers.end(),
                                       other.locality.bus) != gpu.nvlink_peers.end();
  });
}

void guess_inside(const Machine& machine, const NodeResources& resources, Guess& guess) {
  simulate::Link& link = guess.cluster.intra_node;
  std::string& comment = guess.comments.intra_node;
  if (resources.gpus.empty()) {
    link = {.bandwidth = shared_memory, .latency = 2e-6};
    comment = "GUESS: ranks of one node through its memory.";
    return;
  }
  const Gpu& gpu = machine.gpus[static_cast<std::size_t>(resources.gpus.front())];
  const GpuClass& known = class_of(gpu.name);
  if (gpu.nvlinks > 0 && reaches_all(machine, gpu)) {
    link = {.bandwidth = of_nvlink * gpu.nvlinks * rate_of_link(gpu.nvlink_version), .latency = 5e-6};
    comment = fmt::format("GUESS: {} NVLinks (version {}) of {:g} GB/s, of which {:g} is reached.",
                          gpu.nvlinks, gpu.nvlink_version, rate_of_link(gpu.nvlink_version) / 1e9, of_nvlink);
  } else if (known.link > 0 && gpu.nvlinks == 0) {
    link = {.bandwidth = of_nvlink * known.link, .latency = 5e-6};
    comment = fmt::format("GUESS: GPUs of the class {} have links of {:g} GB/s, of which {:g} is reached.",
                          known.name, known.link / 1e9, of_nvlink);
  } else {
    link = {.bandwidth = of_pcie * known.pcie, .latency = 8e-6};
    comment = fmt::format("GUESS: no links that join all GPUs: PCIe of {:g} GB/s, of which {:g} is reached.",
                          known.pcie / 1e9, of_pcie);
  }
}

void guess_between(const Machine& machine, const NodeResources& resources, int ranks, Guess& guess) {
  simulate::Link& link = guess.cluster.inter_node;
  std::string& comment = guess.comments.inter_node;
  const bool gpus = resources.gpu_count > 0;
  guess.cluster.nics_per_node =
      static_cast<int>(resources.nics.size()) < ranks ? static_cast<int>(resources.nics.size()) : 0;
  if (resources.nics.empty()) {
    comment = "GUESS: no NIC was found, so this is the default.";
    return;
  }
  const Nic& nic = machine.nics[static_cast<std::size_t>(resources.nics.front())];
  const bool rdma = !nic.device.empty();
  const double rate = nic.rate > 0 ? nic.rate : rdma ? 100e9 : 10e9, share = rdma ? of_rdma : of_tcp;
  link = {.bandwidth = rate / 8 * share, .latency = !rdma ? 40e-6 : gpus ? 15e-6 : 5e-6};
  comment = fmt::format("GUESS: {} ({}) at {}{}, of which {:g} is reached{}.", nic.name(), name_of(nic.kind),
                        bits_text(rate), nic.rate > 0 ? "" : " (its rate is not known)", share,
                        rdma ? "" : " by TCP");
}

void guess_kernels(const Machine& machine, const NodeResources& resources,
                   const std::vector<RankBinding>& ranks, Guess& guess) {
  double forward = 0, backward = 0;  // at head_dim 128
  double small = 1;                  // head_dim 64 by head_dim 128
  if (!resources.gpus.empty()) {
    const Gpu& gpu = machine.gpus[static_cast<std::size_t>(resources.gpus.front())];
    const double peak = class_of(gpu.name).peak;
    forward = of_peak_forward * peak;
    backward = of_peak_backward * peak;
    small = small_heads;
    guess.comments.kernels = fmt::format("GUESS: {} with {:g} TFLOP/s in 16 bits, of which {:g} is reached.",
                                         gpu.name, peak / 1e12, of_peak_forward);
  } else {
    const double cores =
        ranks.empty() ? 1 : std::max<double>(1, static_cast<double>(ranks.front().cores.size()));
    forward = core_forward * cores;
    backward = core_backward * cores;
    guess.comments.kernels =
        fmt::format("GUESS: {:g} cores per rank with {:g} GFLOP/s each.", cores, core_forward / 1e9);
  }
  using plan::Pass;
  guess.cluster.kernels = {{.pass = Pass::forward, .head_dim = 64, .rate = small * forward},
                           {.pass = Pass::forward, .head_dim = 128, .rate = forward},
                           {.pass = Pass::backward, .head_dim = 64, .rate = small * backward},
                           {.pass = Pass::backward, .head_dim = 128, .rate = backward}};
}

}  // namespace

Guess guess_cluster(const Machine& machine, const NodeResources& resources,
                    const std::vector<RankBinding>& ranks, const std::optional<Topology>& topology) {
  Guess guess{.cluster = simulate::default_cluster(), .comments = {}};
  guess.cluster.topology = topology;
  guess_inside(machine, resources, guess);
  guess_between(machine, resources, static_cast<int>(ranks.size()), guess);
  guess_kernels(machine, resources, ranks, guess);
  return guess;
}

}  // namespace annulus::machine
