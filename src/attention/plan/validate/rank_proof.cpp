#include <algorithm>
#include <array>
#include <span>
#include <tuple>
#include <utility>

#include "attention/plan/proof.hpp"
#include "attention/plan/validate/diagnostics.hpp"
#include "attention/plan/validate/fingerprint.hpp"
#include "attention/plan/validate/flow.hpp"
#include "attention/plan/validate/structure.hpp"

namespace annulus::plan {

using validation::fingerprint;
using validation::packed;

Premises::Premises(const Problem& problem, Pass pass, int steps, int representatives)
    : problem(problem), pass(pass), steps(steps), representatives(representatives) {
  shards.reserve(static_cast<std::size_t>(problem.ranks()));
  for (int rank = 0; rank < problem.ranks(); ++rank) shards.push_back(problem.shard(rank));
  head_weights.push_back(0);
  for (int head = 0; head < problem.heads; ++head)
    head_weights.push_back(head_weights.back() + fingerprint({head}));
}

TensorSlice Premises::whole(Tensor tensor, int owner) const {
  return {
      tensor, owner, {0, shard(owner).count}, {0, is_query_side(tensor) ? problem.heads : problem.kv_heads}};
}

MessageSum& MessageSum::operator+=(const MessageSum& other) {
  contents += other.contents;
  posts += other.posts;
  return *this;
}
MessageSum& MessageSum::operator-=(const MessageSum& other) {
  contents -= other.contents;
  posts -= other.posts;
  return *this;
}
ComputeSum& ComputeSum::operator+=(const ComputeSum& other) {
  weight += other.weight;
  computes += other.computes;
  partial += other.partial;
  return *this;
}

namespace {

int distance(const Premises& premises, int from, int to) {
  const int d = to - from;
  return d < 0 ? d + premises.ranks() : d;
}

/// The weight of some heads with one shard of keys: a product, so that heads add up.
std::uint64_t weight_of(const Premises& premises, int q, int kv, HeadRange heads) {
  const auto before = [&](int head) { return premises.head_weights[static_cast<std::size_t>(head)]; };
  return (before(heads.end) - before(heads.begin)) *
         splitmix64(static_cast<std::uint64_t>(distance(premises, q, kv)));
}

/// Rows of a shard, alike for whole shards of any length, which stand for one another (period.hpp).
RowRange rows_or_whole(const Premises& premises, RowRange rows, int owner) {
  const bool whole = rows.begin == 0 && rows.end == premises.shard(owner).count;
  return whole ? RowRange{-1, -1} : rows;
}

/// A message as both of its ends see it, with ranks counted from the sender.
MessageSum sum_of(const Premises& premises, int from, int to, const Transfer& transfer, std::int64_t index) {
  const TensorSlice& slice = transfer.slice;
  const RowRange rows = rows_or_whole(premises, slice.rows, slice.owner);
  const std::int64_t kind =
      (static_cast<std::int64_t>(slice.tensor) * 256 + static_cast<std::int64_t>(transfer.wire)) *
          channel_count +
      static_cast<std::int64_t>(transfer.channel);
  const std::uint64_t contents =
      fingerprint({distance(premises, from, to), distance(premises, from, slice.owner), kind, index,
                   rows.begin, rows.end, packed(slice.heads)});
  return {contents, splitmix64(contents ^ static_cast<std::uint64_t>(transfer.post))};
}

/// Some unmasked pair of the compute's shards is not the compute's.
bool is_partial(const Premises& premises, const Compute& compute) {
  const PositionMap &q = premises.shard(compute.q_shard), &kv = premises.shard(compute.kv_shard);
  const RowRange &queries = compute.q_rows, &keys = compute.kv_rows;
  if (queries.size() == q.count && keys.size() == kv.count) return false;
  if (premises.representatives < premises.ranks()) return true;  // a mask does not repeat itself
  const Mask& mask = premises.problem.mask;
  const auto some = [&](RowRange rows, RowRange columns) {
    return !rows.empty() && !columns.empty() && !mask.is_empty(q.slice(rows), kv.slice(columns));
  };
  const RowRange all_keys = {0, kv.count};
  return some({0, queries.begin}, all_keys) || some({queries.end, q.count}, all_keys) ||
         some(queries, {0, keys.begin}) || some(queries, {keys.end, kv.count});
}

/// Partial computes of one pair of shards, of the same heads, that share no keys and together leave out
/// nothing.
bool are_whole(const Premises& premises, std::span<const Compute> computes) {
  if (premises.representatives < premises.ranks()) return false;
  const PositionMap &q = premises.shard(computes.front().q_shard),
                    &kv = premises.shard(computes.front().kv_shard);
  const Mask& mask = premises.problem.mask;
  std::int64_t pairs = 0, end = 0;
  for (const Compute& compute : computes) {
    if (compute.kv_rows.begin < end) return false;
    end = compute.kv_rows.end;
    pairs += mask.pairs(q.slice(compute.q_rows), kv.slice(compute.kv_rows));
  }
  return pairs == mask.pairs(q, kv);
}

}  // namespace

std::uint64_t expected_weight(const Premises& premises, int owner) {
  const HeadRange heads{0, premises.problem.heads};
  std::uint64_t weight = 0;
  const bool repeats = premises.representatives < premises.ranks();
  for (int kv = 0; kv < premises.ranks(); ++kv) {
    if (repeats || !premises.problem.mask.is_empty(premises.shard(owner), premises.shard(kv)))
      weight += weight_of(premises, owner, kv, heads);
  }
  return weight;
}

struct RankProof::State {
  State(const Premises& premises, int rank)
      : premises(premises),
        rank(rank),
        flow(premises, rank, violations),
        sends(premises.shards.size()),
        receives(sends) {
    shown.sent.resize(sends.size());
    shown.received.resize(sends.size());
    shown.computed.resize(sends.size());
  }

  using ByChannel = std::array<std::int64_t, channel_count>;

  const Premises& premises;
  int rank, step = 0;
  validation::Diagnostics malformed, violations;
  validation::SlotFlow flow;
  RankFindings shown;
  std::vector<ByChannel> sends, receives;  // [peer]: messages so far
  std::vector<Compute> partial;            // is_partial

  void count(const Transfer& transfer, bool sending) {
    const auto peer = static_cast<std::size_t>(transfer.peer);
    const std::int64_t index =
        (sending ? sends : receives)[peer][static_cast<std::size_t>(transfer.channel)]++;
    if (sending)
      shown.sent[peer] += sum_of(premises, rank, transfer.peer, transfer, index);
    else
      shown.received[peer] += sum_of(premises, transfer.peer, rank, transfer, index);
  }

  void count(const Compute& compute) {
    if (is_partial(premises, compute))
      partial.push_back(compute);
    else
      add(compute, 1, 1, 0);
  }
  void add(const Compute& compute, int times, std::int64_t computes, std::int64_t partial_ones) {
    const std::uint64_t weight =
        weight_of(premises, compute.q_shard, compute.kv_shard, compute.heads) * static_cast<unsigned>(times);
    shown.computed[static_cast<std::size_t>(compute.q_shard)] += {weight, computes, partial_ones};
  }

  void count_partial() {
    const auto pair = [](const Compute& c) {
      return std::tuple(c.q_shard, c.kv_shard, c.heads.begin, c.heads.end);
    };
    std::ranges::sort(partial, {},
                      [&](const Compute& c) { return std::tuple_cat(pair(c), std::tuple(c.kv_rows.begin)); });
    for (auto next = partial.begin(); next != partial.end();) {
      const auto first = next;
      while (next != partial.end() && pair(*next) == pair(*first)) ++next;
      const auto count = static_cast<int>(next - first);
      if (are_whole(premises, {first, next}))
        add(*first, 1, count, 0);
      else
        add(*first, count, count, count);
    }
  }
};

RankProof::RankProof(const Premises& premises, int rank) : state_(std::make_unique<State>(premises, rank)) {}
RankProof::~RankProof() = default;

void RankProof::add(const Step& step) {
  State& s = *state_;
  check_structure(s.premises, s.rank, s.step, step, s.malformed);
  if (s.malformed.empty()) {
    for (const Transfer& send : step.sends) s.count(send, true);
    for (const Transfer& receive : step.receives) s.count(receive, false);
    for (const Compute& compute : step.computes) s.count(compute);
    s.flow.enter(s.step, step);
  }
  ++s.step;
}

RankFindings RankProof::finish() {
  if (state_->malformed.empty()) {
    state_->count_partial();
    state_->flow.finish();
  }
  state_->shown.malformed = state_->malformed.take();
  state_->shown.violations = state_->violations.take();
  return std::move(state_->shown);
}

}  // namespace annulus::plan
