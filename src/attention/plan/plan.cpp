#include <annulus/attention/plan/plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include <annulus/base/error.hpp>

namespace annulus::plan {

namespace {

// Products of two of them fit an int.
constexpr int max_heads = 1 << 16, max_head_dim = 1 << 14, max_batch = 1 << 20;

/// Pairs and bytes of all ranks together are counted in 64 bits.
void check_counts(const Problem& problem) {
  constexpr double most = 0x1p62;
  const auto tokens = static_cast<double>(problem.mask.tokens());
  const MaskRule rule = problem.mask.rule();
  const double rows = tokens * problem.heads * problem.batch,
               keys = std::min(tokens, static_cast<double>(rule.left) + static_cast<double>(rule.right) + 1);
  require(
      rows * keys < most,
      "{} tokens, {} heads and batch {} under mask {} make up to {:.1e} pairs of query and key, more than "
      "are counted ({:.1e}): take fewer",
      problem.mask.tokens(), problem.heads, problem.batch, problem.mask.to_string(), rows * keys, most);
  // A rank passes on no more of a row and a head than q, k, v, o and their gradients in fp32.
  const double bytes = rows * std::max(problem.head_dim, problem.columns(Tensor::v)) * problem.ranks() * 32;
  require(
      bytes < most,
      "{} tokens, {} heads of {} and batch {} on {} ranks make up to {:.1e} bytes of transfers, more than "
      "are counted ({:.1e}): take fewer",
      problem.mask.tokens(), problem.heads, problem.head_dim, problem.batch, problem.ranks(), bytes, most);
}

}  // namespace

std::string_view name_of(Pass pass) {
  return pass == Pass::forward ? "forward" : "backward";
}

std::string_view name_of(Tensor tensor) {
  constexpr std::array<std::string_view, tensor_count> names = {"q", "k",  "v",  "o",  "lse",
                                                                "d", "do", "dq", "dk", "dv"};
  return names[static_cast<std::size_t>(tensor)];
}

std::string_view name_of(GridPlacement placement) {
  return placement == GridPlacement::head_first ? "head-first" : "context-first";
}

std::string_view name_of(Channel channel) {
  constexpr std::array<std::string_view, channel_count> names = {"outer activations", "outer gradients",
                                                                 "activations", "gradients"};
  return names[static_cast<std::size_t>(channel)];
}

std::string_view name_of(OnReceive on_receive) {
  constexpr std::array<std::string_view, 3> names = {"store", "add", "merge"};
  return names[static_cast<std::size_t>(on_receive)];
}

PositionMap Problem::owned(int rank) const {
  const PositionMap group =
      layout.shard(mask.tokens(), grid.ring_degree(ranks()), grid.ring_rank(rank, ranks()));
  if (grid.ulysses_degree == 1) return group;
  const std::int64_t place = grid.ulysses_rank(rank, ranks());
  return group.slice(
      {group.count * place / grid.ulysses_degree, group.count * (place + 1) / grid.ulysses_degree});
}

PositionMap Problem::shard(int rank) const {
  return taking_part(owned(rank));
}

TensorSlice Problem::whole(Tensor tensor, int owner) const {
  return {tensor, owner, {0, shard(owner).count}, {0, is_query_side(tensor) ? heads : kv_heads}};
}

TensorSlice Problem::local(Tensor tensor, int owner) const {
  return {tensor, owner, {0, owned(owner).count}, {0, is_query_side(tensor) ? heads : kv_heads}};
}

PositionMap Problem::taking_part(const PositionMap& map) const {
  return positions == 0 ? map : map.slice({0, map.rows_below(positions)});
}

Problem Problem::of_all_positions() const {
  Problem all = *this;
  all.positions = 0;
  return all;
}

std::string Problem::text_of_head_dims() const {
  return columns(Tensor::v) == head_dim ? fmt::format("{}", head_dim)
                                        : fmt::format("{} (v {})", head_dim, columns(Tensor::v));
}

DType Problem::wire(Tensor tensor) const {
  const bool as_stored =
      tensor == Tensor::q || tensor == Tensor::k || tensor == Tensor::v || tensor == Tensor::d_o;
  return as_stored ? dtype : DType::f32;
}

std::int64_t Problem::elements(const TensorSlice& slice) const {
  return std::int64_t{batch} * slice.heads.size() * slice.rows.size() * columns(slice.tensor);
}

void Problem::check() const {
  require(heads >= 1 && heads <= max_heads, "heads is {}: attention takes 1 to {} query heads", heads,
          max_heads);
  require(kv_heads >= 1, "kv_heads is {}: attention needs at least one key/value head", kv_heads);
  require(heads % kv_heads == 0,
          "heads ({}) is not a multiple of kv_heads ({}): every kv head serves equally many query heads",
          heads, kv_heads);
  require(head_dim >= 1 && head_dim <= max_head_dim, "head_dim is {}: give 1 to {}", head_dim, max_head_dim);
  require(v_head_dim >= 0 && v_head_dim <= max_head_dim, "v_head_dim is {}: give 1 to {}, or 0 for head_dim",
          v_head_dim, max_head_dim);
  require(batch >= 1 && batch <= max_batch, "batch is {}: give 1 to {}", batch, max_batch);
  require(grid.ulysses_degree >= 1 && ranks() % grid.ulysses_degree == 0,
          "{} ranks do not form Ulysses groups of {} ranks: that number must divide them", ranks(),
          grid.ulysses_degree);
  require(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          "dtype {} is none that attention computes with: use f32, bf16 or f16", name_of(dtype));
  require(positions >= 0 && positions <= mask.tokens(),
          "positions is {}: of a sequence of {} tokens at most all take part; 0 stands for all", positions,
          mask.tokens());
  require(positions == 0 || mask.rule().right == 0,
          "positions is {}, but under mask {} queries attend to later keys, which would take no part: join "
          "causal to the mask",
          positions, mask.to_string());
  check_counts(*this);
}

std::string Plan::pass_text() const {
  const std::string_view name = name_of(pass);
  return problem.positions == 0 ? std::string(name)
                                : fmt::format("{} of the first {} positions", name, problem.positions);
}

bool operator==(const Plan& a, const Plan& b) {
  if (a.schedule != b.schedule || a.pass != b.pass || a.steps != b.steps) return false;
  if (a.problem.ranks() != b.problem.ranks()) return false;
  for (int rank = 0; rank < a.problem.ranks(); ++rank) {
    for (int s = 0; s < a.steps; ++s) {
      if (a.step(rank, s) != b.step(rank, s)) return false;
    }
  }
  return true;
}

Traffic traffic(const Plan& plan, int rank) {
  const Problem& problem = plan.problem;
  Traffic sum;
  for (int s = 0; s < plan.steps; ++s) {
    const Step step = plan.step(rank, s);
    for (const Transfer& transfer : step.sends) {
      const std::int64_t elements = problem.elements(transfer.slice);
      const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(transfer.wire));
      sum.sent[static_cast<int>(transfer.slice.tensor)] += elements;
      sum.sent_bytes += bytes;
      if (!problem.topology.same_node(rank, transfer.peer)) sum.sent_bytes_inter_node += bytes;
    }
    for (const Transfer& transfer : step.receives) {
      const std::int64_t elements = problem.elements(transfer.slice);
      sum.received[static_cast<int>(transfer.slice.tensor)] += elements;
      sum.received_bytes += elements * static_cast<std::int64_t>(size_of(transfer.wire));
    }
    for (const Compute& compute : step.computes) {
      sum.pairs +=
          compute.heads.size() * problem.mask.pairs(problem.shard(compute.q_shard).slice(compute.q_rows),
                                                    problem.shard(compute.kv_shard).slice(compute.kv_rows));
    }
  }
  return sum;
}

double worker_imbalance(const std::vector<std::int64_t>& loads) {
  const auto all = static_cast<double>(std::accumulate(loads.begin(), loads.end(), std::int64_t{0}));
  if (all == 0) return 1;
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) *
         static_cast<double>(loads.size()) / all;
}

double worker_imbalance(const Plan& plan) {
  std::vector<std::int64_t> pairs;
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) pairs.push_back(traffic(plan, rank).pairs);
  return worker_imbalance(pairs);
}

std::int64_t column_traffic(const Plan& plan, std::int64_t columns, bool has_keys) {
  constexpr std::int64_t sum_bytes = 4;  // of dK and dV, in fp32
  const std::int64_t ranks = plan.problem.ranks(),
                     of_keys = has_keys || plan.queries_stay
                                   ? 0
                                   : static_cast<std::int64_t>(size_of(plan.problem.dtype)),
                     of_sums = plan.pass == Pass::backward ? sum_bytes : 0;
  // A sum over ranks, which all of them get, sends 2 · (ranks − 1) / ranks of what it sums: here K and V.
  return 2 * columns * plan.problem.head_dim * (of_keys + of_sums) * 2 * (ranks - 1) / ranks;
}

}  // namespace annulus::plan
