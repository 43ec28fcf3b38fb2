#include "prediction/simulator/summary.hpp"

#include <algorithm>
#include <numeric>

namespace annulus::simulator {

std::string_view name_of(LinkClass link) {
  return link == LinkClass::intra_node ? "intra_node" : "inter_node";
}

LinkClass link_between(const Topology& topology, int a, int b) {
  return topology.same_node(a, b) ? LinkClass::intra_node : LinkClass::inter_node;
}

std::int64_t sum(const BytesByLink& bytes, LinkClass link) {
  std::int64_t total = 0;
  for (const auto& tensor : bytes) total += tensor[static_cast<std::size_t>(link)];
  return total;
}

void SlotSizes::hold(const plan::Problem& problem, const plan::TensorSlice& slice, plan::Slot slot) {
  if (slot == plan::local_slot) return;
  auto& sizes = slots_[static_cast<std::size_t>(slice.tensor)];
  const auto index = static_cast<std::size_t>(slot);
  if (sizes.size() <= index) sizes.resize(index + 1);
  // Slots store what the wire carries: inputs in the activation type, sums and statistics in fp32.
  const auto bytes = problem.elements(slice) * static_cast<std::int64_t>(size_of(problem.wire(slice.tensor)));
  sizes[index] = std::max(sizes[index], bytes);
}

std::int64_t SlotSizes::bytes() const {
  std::int64_t total = 0;
  for (const auto& sizes : slots_) total = std::accumulate(sizes.begin(), sizes.end(), total);
  return total;
}

Loads::Loads(int ranks, int steps)
    : sum_(static_cast<std::size_t>(ranks)),
      largest_(static_cast<std::size_t>(ranks)),
      round_(static_cast<std::size_t>(ranks), -1),
      of_first_(static_cast<std::size_t>(ranks)),
      of_round_(static_cast<std::size_t>(ranks)),
      computing_(static_cast<std::size_t>(steps)) {}

void Loads::add(int rank, int round, std::int64_t pairs) {
  if (pairs == 0) return;
  const auto r = static_cast<std::size_t>(rank);
  sum_[r] += pairs;
  std::int64_t& of_round = round == 0 ? of_first_[r] : of_round_[r];
  of_round = round == 0 || round == round_[r] ? of_round + pairs : pairs;
  if (round != 0) round_[r] = round;
  largest_[r] = std::max(largest_[r], of_round);
  computing_[static_cast<std::size_t>(round)] = true;
}

Imbalance Loads::imbalance() const {
  const auto rounds = static_cast<double>(std::count(computing_.begin(), computing_.end(), true));
  double ratios = 0;
  int workers = 0;
  for (std::size_t r = 0; r < sum_.size(); ++r) {
    if (sum_[r] == 0) continue;
    ratios += static_cast<double>(largest_[r]) * rounds / static_cast<double>(sum_[r]);
    ++workers;
  }
  return {plan::worker_imbalance(sum_), workers == 0 ? 1 : ratios / workers};
}

std::int64_t pairs_of(const plan::Problem& problem, const plan::Compute& c) {
  return problem.mask.pairs(problem.shard(c.q_shard).slice(c.q_rows),
                            problem.shard(c.kv_shard).slice(c.kv_rows));
}

std::int64_t bytes_of(const plan::Problem& problem, const plan::Transfer& transfer) {
  return problem.elements(transfer.slice) * static_cast<std::int64_t>(size_of(transfer.wire));
}

}  // namespace annulus::simulator
