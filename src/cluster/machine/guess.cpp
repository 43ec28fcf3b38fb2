// Rates by the class of the device, for planning before anything is measured.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>

#include "cluster/machine/environment.hpp"
#include "cluster/machine/text.hpp"

namespace annulus::machine {
namespace {

/// Published figures of a GPU: to its peers by NVLink or the like and to the host, bytes per second each
/// direction; dense 16-bit products and fp32, FLOP/s; its memory, bytes per second.
struct GpuClass {
  std::string_view name;  ///< a part of the GPU's name
  double link, pcie, peak, fp32, memory;
};

// Names that contain others come first.
constexpr std::array gpu_classes = {
    GpuClass{"B300", 900e9, 64e9, 2250e12, 77e12, 8.0e12},
    GpuClass{"B200", 900e9, 64e9, 2250e12, 80e12, 8.0e12},
    // Four of a node, each with six of its 18 links to each other one.
    GpuClass{"GH200", 150e9, 450e9, 989e12, 67e12, 4.0e12},
    GpuClass{"H200", 450e9, 64e9, 989e12, 67e12, 4.8e12},
    GpuClass{"H100 PCIe", 0, 64e9, 756e12, 51e12, 2.0e12},
    GpuClass{"H100", 450e9, 64e9, 989e12, 67e12, 3.35e12},
    GpuClass{"H800", 200e9, 64e9, 989e12, 67e12, 3.35e12},
    GpuClass{"H20", 450e9, 64e9, 148e12, 44e12, 4.0e12},
    GpuClass{"A100-PCIE", 0, 32e9, 312e12, 19.5e12, 1.6e12},
    GpuClass{"A100", 300e9, 32e9, 312e12, 19.5e12, 2.0e12},
    GpuClass{"A800", 200e9, 32e9, 312e12, 19.5e12, 2.0e12},
    GpuClass{"V100", 150e9, 16e9, 125e12, 15.7e12, 0.9e12}, GpuClass{"L40", 0, 32e9, 181e12, 90e12, 0.86e12},
    GpuClass{"A40", 0, 32e9, 150e12, 37e12, 0.7e12}, GpuClass{"L4", 0, 32e9, 121e12, 30e12, 0.3e12},
    GpuClass{"MI300X", 448e9, 64e9, 1307e12, 163e12, 5.3e12}};
constexpr GpuClass unknown_gpu{"", 0, 32e9, 150e12, 20e12, 1.0e12};

/// What of a published figure a long message, or attention, reaches: usually, and at least and at most where
/// it was measured.
struct Share {
  double usual, low, high;

  double at(Bound bound) const { return bound == Bound::low ? low : bound == Bound::high ? high : usual; }
  /// Text for comments.
  std::string text() const { return fmt::format("{:g} is reached ({:g} to {:g})", usual, low, high); }
};

// Links of H200, memory, products and attention of H100 and H200 as in data/clusters; attention of A100 as
// FlashAttention-2 (arXiv 2307.08691) reports it. What nobody measured here has a range about as wide.
constexpr Share of_nvlink{0.8, 0.6, 0.85}, of_pcie{0.8, 0.7, 0.9}, of_rdma{0.9, 0.8, 0.95},
    of_tcp{0.6, 0.4, 0.8};
constexpr Share of_peak_forward{0.6, 0.5, 0.73}, of_peak_backward{0.45, 0.4, 0.63};  // head_dim 128
constexpr double small_heads = 2.0 / 3;  // head_dim 64, beside head_dim 128
constexpr Share of_peak_products{0.6, 0.5, 0.8}, of_fp32{0.75, 0.6, 0.9}, of_memory{0.8, 0.75, 0.9};

/// Nodes that are known by name: GPUs, and the rate of the NIC that each of these has, bits per second.
struct NodeType {
  std::string_view name, gpu;
  int gpus;
  double nic;
  std::string_view like;  ///< whose nodes these are
};

constexpr std::array node_types = {
    NodeType{"a100", "A100", 8, 200e9, "DGX A100"},
    NodeType{"a800", "A800", 8, 200e9, "the nodes of BurstEngine (arXiv 2509.19836, section 4.1)"},
    NodeType{"h800", "H800", 8, 400e9, "the nodes of DeepSeek-V3 (arXiv 2412.19437, section 3)"},
    NodeType{"gh200", "GH200", 4, 200e9, "JUPITER and Alps"}};

const GpuClass& class_of(std::string_view name) {
  const auto found =
      std::ranges::find_if(gpu_classes, [&](const GpuClass& c) { return name.find(c.name) != name.npos; });
  return found == gpu_classes.end() ? unknown_gpu : *found;
}

/// Bytes per second, each direction, of one link.
double rate_of_link(int version) {
  return version >= 5 ? 50e9 : version >= 2 ? 25e9 : 20e9;
}

/// The links of the GPU reach every other GPU of the node.
bool reaches_all(const Machine& machine, const Gpu& gpu) {
  if (gpu.nvswitch) return true;
  return std::ranges::all_of(machine.gpus, [&](const Gpu& other) {
    return &other == &gpu ||
           std::ranges::find(gpu.nvlink_peers, other.locality.bus) != gpu.nvlink_peers.end();
  });
}

/// Links inside a node by the class of its GPUs.
void guess_links_of(const GpuClass& known, Bound bound, Guess& guess) {
  guess.cluster.intra_node = {.bandwidth = of_nvlink.at(bound) * known.link, .latency = 5e-6};
  guess.comments.intra_node = fmt::format("GUESS: GPUs of the class {} have links of {:g} GB/s, of which {}.",
                                          known.name, known.link / 1e9, of_nvlink.text());
}

void guess_inside(const Machine& machine, const NodeResources& resources, Guess& guess) {
  simulator::Link& link = guess.cluster.intra_node;
  std::string& comment = guess.comments.intra_node;
  if (resources.gpus.empty()) {
    comment = "GUESS: ranks of one node through its memory.";
    return;
  }
  const Gpu& gpu = machine.gpus[resources.gpus.front()];
  const GpuClass& known = class_of(gpu.name);
  if (gpu.nvlinks > 0 && reaches_all(machine, gpu)) {
    const double rate = rate_of_link(gpu.nvlink_version);
    link = {.bandwidth = of_nvlink.usual * gpu.nvlinks * rate, .latency = 5e-6};
    comment = fmt::format("GUESS: {} NVLinks (version {}) of {:g} GB/s, of which {}.", gpu.nvlinks,
                          gpu.nvlink_version, rate / 1e9, of_nvlink.text());
  } else if (known.link > 0 && gpu.nvlinks == 0) {
    guess_links_of(known, Bound::usual, guess);
  } else {
    link = {.bandwidth = of_pcie.usual * known.pcie, .latency = 8e-6};
    comment = fmt::format("GUESS: no links that join all GPUs: PCIe of {:g} GB/s, of which {}.",
                          known.pcie / 1e9, of_pcie.text());
  }
}

void guess_between(const Machine& machine, const NodeResources& resources, int ranks, Guess& guess) {
  simulator::Link& link = guess.cluster.inter_node;
  std::string& comment = guess.comments.inter_node;
  const bool gpus = resources.gpu_count > 0;
  guess.cluster.nics_per_node =
      static_cast<int>(resources.nics.size()) < ranks ? static_cast<int>(resources.nics.size()) : 0;
  if (resources.nics.empty()) {
    comment = "GUESS: no NIC was found, so this is the default.";
    return;
  }
  const Nic& nic = machine.nics[resources.nics.front()];
  const bool rdma = !nic.device.empty();
  const double rate = nic.rate > 0 ? nic.rate : rdma ? 100e9 : 10e9;
  const Share share = rdma ? of_rdma : of_tcp;
  link = {.bandwidth = rate / 8 * share.usual, .latency = !rdma ? 40e-6 : gpus ? 15e-6 : 5e-6};
  comment =
      fmt::format("GUESS: {} ({}) at {}{}, of which {}{}.", nic.name(), name_of(nic.kind), bits_text(rate),
                  nic.rate > 0 ? "" : " (its rate is not known)", share.text(), rdma ? "" : " by TCP");
}

double cores_of(const std::vector<RankBinding>& ranks) {
  return ranks.empty() ? 1 : std::max<double>(1, static_cast<double>(ranks.front().cores.size()));
}

/// Attention, products and memory of a GPU, whose name is `name`.
void guess_rates(const GpuClass& known, std::string_view name, Bound bound, Guess& guess) {
  const double forward = of_peak_forward.at(bound) * known.peak,
               backward = of_peak_backward.at(bound) * known.peak;
  using plan::Pass;
  simulator::Cluster& cluster = guess.cluster;
  cluster.kernels = {{.pass = Pass::forward, .head_dim = 64, .rate = small_heads * forward},
                     {.pass = Pass::forward, .head_dim = 128, .rate = forward},
                     {.pass = Pass::backward, .head_dim = 64, .rate = small_heads * backward},
                     {.pass = Pass::backward, .head_dim = 128, .rate = backward}};
  cluster.gemms = {{.width = 0, .rate = of_peak_products.at(bound) * known.peak, .dtype = DType::bf16},
                   {.width = 0, .rate = of_fp32.at(bound) * known.fp32, .dtype = DType::f32}};
  cluster.memory.device = of_memory.at(bound) * known.memory;
  cluster.memory.host_copy = of_pcie.at(bound) * known.pcie;
  guess.comments.kernels = fmt::format(
      "GUESS: {} with {:g} TFLOP/s in 16 bits, of which forward {}, backward {}; at head_dim 64 two thirds "
      "of that.",
      name, known.peak / 1e12, of_peak_forward.text(), of_peak_backward.text());
  guess.comments.gemms =
      fmt::format("GUESS: of these {:g} TFLOP/s {}; of {:g} TFLOP/s in fp32 {}.", known.peak / 1e12,
                  of_peak_products.text(), known.fp32 / 1e12, of_fp32.text());
  guess.comments.memory = fmt::format(
      "GUESS: {:g} TB/s of the GPU, of which {}; {:g} GB/s to the host, "
      "of which {}; host_bandwidth is the default.",
      known.memory / 1e12, of_memory.text(), known.pcie / 1e9, of_pcie.text());
}

}  // namespace

double processor_flops(std::string_view cpuinfo) {
  const auto line = [&](std::string_view key) -> std::string_view {
    std::size_t at = cpuinfo.starts_with(key) ? 0 : cpuinfo.find("\n" + std::string(key));
    if (at == cpuinfo.npos) return {};
    at = cpuinfo.find(':', at);
    return at == cpuinfo.npos ? std::string_view() : cpuinfo.substr(at + 1, cpuinfo.find('\n', at) - at - 1);
  };
  const auto has = [](std::string_view flags, std::string_view flag) {
    return (std::string(flags) + " ").find(" " + std::string(flag) + " ") != std::string::npos;
  };
  const std::string_view x86 = line("flags"), arm = line("Features");
  // fp32 operations of a clock cycle: two multiply-adds of whole vectors.
  const double cycle = has(x86, "avx512f")                    ? 64
                       : has(x86, "avx2") && has(x86, "fma")  ? 32
                       : has(x86, "avx")                      ? 16
                       : has(arm, "sve") || has(arm, "asimd") ? 24
                       : !x86.empty()                         ? 8
                                                              : 0;
  if (cycle == 0) return 0;
  constexpr double turbo = 1.25;  // cpuinfo often has the base clock
  double megahertz = 0;
  const std::string clock(line("cpu MHz"));
  if (!clock.empty()) megahertz = std::strtod(clock.c_str(), nullptr);
  return cycle * (megahertz > 100 ? turbo * megahertz * 1e6 : 3e9);
}

Guess guess_cluster(const Machine& machine, const NodeResources& resources,
                    const std::vector<RankBinding>& ranks, const std::optional<Topology>& topology,
                    double core_flops) {
  Guess guess{.cluster = simulator::default_cluster(), .comments = {}};
  if (resources.gpus.empty()) {
    const double cores = cores_of(ranks), flops = core_flops > 0 ? core_flops : simulator::unknown_core_flops;
    guess.cluster = simulator::host_cluster(cores, flops);
    guess.comments.kernels = fmt::format(
        "GUESS: {:g} cores per rank with {:.3g} GFLOP/s each ({}), of which 0.8 is reached.", cores,
        flops / 1e9,
        core_flops > 0 ? "by instruction set and clock" : "no processor is known, as with AVX2 at 3 GHz");
    guess.comments.gemms = "GUESS: of these, 0.85 in fp32 and 0.6 in bf16.";
    guess.comments.memory =
        fmt::format("GUESS: {:g} cores per rank with 8 GB/s each, 6 GB/s for AdamW.", cores);
  } else {
    const std::string& name = machine.gpus[resources.gpus.front()].name;
    guess_rates(class_of(name), name, Bound::usual, guess);
  }
  guess.cluster.guessed = true;
  guess.cluster.topology = topology;
  guess_inside(machine, resources, guess);
  guess_between(machine, resources, static_cast<int>(ranks.size()), guess);
  return guess;
}

Guess guess_node_type(std::string_view name, Bound bound) {
  const auto type = std::ranges::find(node_types, name, &NodeType::name);
  std::vector<std::string_view> known_types;
  for (const NodeType& each : node_types) known_types.push_back(each.name);
  require(type != node_types.end(), "no type of node is called '{}': {} are known", name,
          fmt::join(known_types, ", "));
  const GpuClass& known = class_of(type->gpu);
  Guess guess{.cluster = simulator::default_cluster(), .comments = {}};
  guess.cluster.guessed = true;
  guess.cluster.topology = Topology::uniform(type->gpus, type->gpus);
  guess_links_of(known, bound, guess);
  guess.cluster.inter_node = {.bandwidth = of_rdma.at(bound) * type->nic / 8, .latency = 15e-6};
  guess.comments.inter_node =
      fmt::format("GUESS: a NIC of {} for each GPU, of which {}.", bits_text(type->nic), of_rdma.text());
  guess_rates(known, type->gpu, bound, guess);
  guess.comments.file = fmt::format("Nodes of {} {}, as {}.", type->gpus, type->gpu, type->like);
  return guess;
}

}  // namespace annulus::machine
