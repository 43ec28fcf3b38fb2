#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/cluster/topology/topology.hpp>

/// Predicts what a plan takes on a cluster that need not be there.
namespace annulus::simulator {

/// One direction of a link: n bytes that have it for themselves arrive latency + n / bandwidth after they set
/// out (Hockney's model). Messages share the bandwidth, not the latency.
struct Link {
  double bandwidth = 0;  ///< bytes per second
  double latency = 0;    ///< seconds
  friend bool operator==(const Link&, const Link&) = default;
};

/// Which pairs of a block are unmasked.
enum class BlockMask : std::uint8_t {
  full,    ///< all: shards that lie wholly in one another's past
  causal,  ///< key ≤ query: a shard with itself, or two shards of a striped layout
};
/// "full", "causal"
std::string_view name_of(BlockMask mask);
/// Of a block with `pairs` of `all` pairs.
inline BlockMask mask_of(std::int64_t pairs, std::int64_t all) {
  return pairs < all ? BlockMask::causal : BlockMask::full;
}

/// What the local attention kernel reaches, measured for one shape.
struct KernelRate {
  plan::Pass pass = plan::Pass::forward;
  int head_dim = 0;
  std::int64_t rows = 0;  ///< holds for blocks of at least so many query rows and key rows
  double rate = 0;        ///< FLOP/s, counted as `flops` does
  std::optional<DType> dtype = std::nullopt;  ///< storage of q, k, v and d_o; nothing: holds for every type
  std::optional<BlockMask> mask = std::nullopt;  ///< causal: of blocks with masked pairs; nothing: of all
  friend bool operator==(const KernelRate&, const KernelRate&) = default;
};

/// What products with weights reach.
struct GemmRate {
  std::int64_t width = 0;                     ///< holds for weights whose smaller side is at least so wide
  double rate = 0;                            ///< FLOP/s, two a multiply-add
  std::optional<DType> dtype = std::nullopt;  ///< of the factors; nothing: holds for every type
  friend bool operator==(const GemmRate&, const GemmRate&) = default;
};

/// Rates of products with weights in default_cluster.
std::vector<GemmRate> default_gemms();

/// Memory that a rank moves data in.
struct MemoryRates {
  double device = 2.7e12;   ///< bytes per second, read and written, of kernels that are bound by memory
  double host_copy = 50e9;  ///< bytes per second between a GPU and pinned memory of the host, each direction
  double host = 120e9;      ///< bytes per second, read and written, of the host's threads of a rank
  friend bool operator==(const MemoryRates&, const MemoryRates&) = default;
};

/// Links and kernels of a cluster (docs/formats/cluster.md).
struct Cluster {
  std::optional<Topology> topology;  ///< where its ranks sit; a plan's own problem goes before it
  Link intra_node;  ///< of a rank to the others of its node; shared by all that the rank sends, or receives
  Link inter_node;  ///< of one NIC of a node; shared by the ranks of the NIC
  int nics_per_node = 0;  ///< rank i of a node has NIC i mod nics_per_node; 0: every rank has its own
  /// Bytes per second that one rank sends, or receives, between nodes at most, whatever its NIC could do;
  /// 0: all of that (the max-rate model of Gropp, Olson and Samfass, EuroMPI 2016).
  double rank_bandwidth = 0;
  std::vector<KernelRate> kernels;
  std::vector<GemmRate> gemms = default_gemms();
  MemoryRates memory;
  bool guessed = false;  ///< some of these numbers stand for a class of devices, and nobody measured them

  /// NIC of a rank, counted on its node.
  int nic(const Topology& ranks, int rank) const;

  /// Rate, in FLOP/s, of a block with `rows` query rows or key rows, whichever are fewer. Of the entries of
  /// the pass: those of the type (or else those for every type, or else those of a type as wide, or else
  /// all), of these those with the nearest head_dim (by ratio, the smaller of two), of these those of `mask`
  /// (or else those for every mask, or else all), of these the one with the most rows that are not more than
  /// `rows`, or else the one with the fewest. Without `dtype` or `mask` entries for every type or mask go
  /// before others.
  double rate(plan::Pass pass, int head_dim, std::int64_t rows, std::optional<DType> dtype = std::nullopt,
              std::optional<BlockMask> mask = std::nullopt) const;

  /// Rate, in FLOP/s, of products with weights whose smaller side is `width`. Of the entries of the type (or
  /// else those for every type, or else all) the widest that is not wider than `width`, or else the
  /// narrowest.
  double gemm_rate(std::int64_t width, DType dtype) const;

  /// Throws Error when a number makes no sense, or when a pass has no kernel.
  void check() const;

  friend bool operator==(const Cluster&, const Cluster&) = default;
};

/// Nodes of 8 GPUs of the H100's class: 300 GB/s inside a node, one NIC of 45 GB/s for each rank between
/// nodes, 16-bit FlashAttention kernels.
Cluster default_cluster();
/// What messages call default_cluster, where predictions are by its rates.
inline constexpr std::string_view default_cluster_text =
    "the default cluster, 8-GPU nodes of the H100's class, of which nothing was measured here";

/// FLOP/s of a core of which nothing is known: AVX2 at 3 GHz.
inline constexpr double unknown_core_flops = 100e9;

/// Nodes whose ranks compute on `cores` cores each, which do `core_flops` fp32 operations a second at most:
/// what attention, products and memory usually reach of them. Messages between nodes are those of
/// default_cluster.
Cluster host_cluster(double cores, double core_flops);

/// Reads a cluster file. What it leaves out is as in default_cluster. Throws Error that names file, line, key
/// and remedy.
Cluster read_cluster(const std::filesystem::path& path);

/// What messages say where predictions are by the rates of `cluster`, which was read from `file`.
std::string rates_text(const Cluster& cluster, const std::filesystem::path& file);

/// Reads the text of a cluster file; `origin` stands for the file in messages.
Cluster parse_cluster(std::string_view text, std::string_view origin);

/// What a cluster file says about its numbers: lines of text that become comments.
struct ClusterComments {
  std::string file;  ///< at its head
  std::string intra_node = {}, inter_node = {}, memory = {}, kernels = {},
              gemms = {};  ///< above these tables
};

/// A cluster file with every number of the cluster. Reading it gives the same cluster again, bit for bit.
std::string to_text(const Cluster& cluster, const ClusterComments& comments = {});

/// Floating point operations of attention: 4·head_dim forward and 10·head_dim backward (two and five matrix
/// products) for each of `pairs` unmasked (query, key) pairs, which are summed over heads, and each sequence
/// of the batch.
double flops(const plan::Problem& problem, plan::Pass pass, std::int64_t pairs);

}  // namespace annulus::simulator
