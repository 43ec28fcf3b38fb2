#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

namespace annulus::simulator {

enum class LinkClass : std::uint8_t { intra_node, inter_node };
inline constexpr int link_class_count = 2;

/// "intra_node", "inter_node"
std::string_view name_of(LinkClass link);

LinkClass link_between(const Topology& topology, int a, int b);

/// Unmasked (query, key) pairs of one head that a compute covers.
std::int64_t pairs_of(const plan::Problem& problem, const plan::Compute& compute);

std::int64_t bytes_of(const plan::Problem& problem, const plan::Transfer& transfer);

/// Bytes by tensor and class of link: bytes[tensor][link].
using BytesByLink = std::array<std::array<std::int64_t, link_class_count>, plan::tensor_count>;
std::int64_t sum(const BytesByLink& bytes, LinkClass link);

/// What one rank does in a pass.
struct RankSummary {
  std::int64_t pairs = 0;  ///< unmasked (query, key) pairs, summed over heads
  BytesByLink sent{}, received{};
  std::int64_t buffer_bytes = 0;  ///< exchange slots: the largest slice of each, as the executor keeps them
  double computing = 0;           ///< seconds
  double exposed_communication = 0;  ///< seconds between two steps in which the rank waits
  double end = 0;                    ///< time at which its last step ends
};

struct ComputeSpan {
  int rank = 0, step = 0;
  int q_shard = 0, kv_shard = 0;
  plan::HeadRange heads;
  std::int64_t pairs = 0;  ///< of one head
  double start = 0, end = 0;
};

struct TransferSpan {
  int from = 0, to = 0;
  int step = 0;  ///< in which the sender posts it
  plan::Tensor tensor = plan::Tensor::q;
  int owner = 0;
  std::int64_t bytes = 0;
  plan::Channel channel = plan::Channel::activations;
  LinkClass link = LinkClass::intra_node;
  double start = 0, left = 0, end = 0;  ///< set out, last byte on the link, arrived
};

struct WaitSpan {
  int rank = 0, step = 0;  ///< before which it waits
  double start = 0, end = 0;
};

/// Everything that takes time, each kind in the order in which it was begun (a step begins all its computes).
struct Timeline {
  std::vector<ComputeSpan> computes;
  std::vector<TransferSpan> transfers;
  std::vector<WaitSpan> waits;
};

/// Imbalance degree (MTraining §3.3, Figures 3 and 12): the largest load over the mean one; 1 is balanced,
/// and what exceeds it is the factor by which the slowest is slower. With w(r, s) the pairs that rank r of G
/// computes in step s, summed over heads, and S the steps in which at least one rank computes (steps that are
/// parts of one round, Plan::parts, count as one):
///
///     worker = max_r W(r) / (Σ_r W(r) / G),   W(r) = Σ_s w(r, s)
///     step   = mean over r with W(r) > 0 of  max_s w(r, s) / (W(r) / |S|)
///
/// Both are 1 when nothing is computed.
struct Imbalance {
  double worker = 1, step = 1;
};

struct Simulation {
  double time = 0;  ///< seconds until the last rank is done
  std::vector<RankSummary> ranks;
  Imbalance imbalance;
  Timeline timeline;  ///< empty unless asked for
};

enum class Detail : std::uint8_t {
  times,    ///< pairs by rank and the ranks' imbalance may be those of the representative ranks
  totals,   ///< all but the timeline
  timeline  ///< simulates every rank
};

/// What kernels compute of the pairs that a plan's mask allows: dynamic sparse attention selects some while a
/// step runs, and plans, which say what travels, know nothing of it (docs/sparsity.md).
struct Selected {
  double density = 1;  ///< share of the pairs; of every compute alike where `pairs` is empty
  /// The selected pairs of a compute, summed over its heads, of one sequence. Empty: by `density`.
  std::function<std::int64_t(const plan::Problem& problem, const PositionMap& queries,
                             const PositionMap& keys, plan::HeadRange heads)>
      pairs = {};

  bool all() const { return density == 1 && !pairs; }
  /// By `density`, of as many unmasked pairs.
  std::int64_t share_of(std::int64_t unmasked) const;
};

/// Runs a plan on a cluster, in simulated time; the same arguments give the same result to the last bit.
///
/// Each rank goes through its steps as plan::Step says: it waits for the transfers of earlier steps, posts
/// new ones, and computes while they travel, one compute after the other at the rate of the cluster's kernel.
/// A transfer sets out when both sides have posted it and those before it, of its channel and between its two
/// ranks, have left; it shares links as fluids do (each flow gets an equal share of a port's bandwidth, the
/// smaller of those of its two ports), is off the sender's hands when its last byte has left and there a
/// latency later. Posting, adding, merging and packing take no time, and compute is not slowed down by
/// transfers.
///
/// Steps are made when a rank comes to them and not kept. Of a large plan with a period (plan::RankSubset)
/// only the ranks of whole nodes and periods are simulated, the representative ranks: what the others do is
/// the same with other rank numbers, so what they send and receive takes the same time on their links. Their
/// shards may differ by a row or so and, under a mask, in their work: a compute takes as long as the longest
/// of a sample of the ranks that do it, bytes and buffers are those of the representative ranks, `pairs` is
/// exact. Where nodes differ in size every rank is simulated.
///
/// Where only some pairs are selected, computes take the time of these, `pairs` and the imbalance are theirs,
/// and what travels is the same. With Selected::pairs every rank is simulated.
///
/// Throws Error when the plan does not end, naming a rank and the step that it cannot begin, and when a plan
/// has so many messages that they would take gigabytes.
Simulation simulate(const plan::Plan& plan, const Cluster& cluster, Detail detail = Detail::totals,
                    plan::RankSubset subset = plan::RankSubset::automatic, const Selected& selected = {});

/// What a plan is to ranks that wait for the transfers they have just posted before they compute
/// (executor::Settings::overlap = false): each step in two, one that posts and one that computes. To be
/// simulated; the executor runs the plan itself.
plan::Plan without_overlap(const plan::Plan& plan);

}  // namespace annulus::simulator
