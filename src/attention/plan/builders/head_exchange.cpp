#include "attention/plan/builders/head_exchange.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention/plan/builders/parts.hpp"
#include "attention/plan/needs/shard_pairs.hpp"
#include "attention/plan/rectangle.hpp"

namespace annulus::plan {
namespace {

/// What a pass exchanges beforehand, and what of it stays with the queries' and the keys' ranks until it
/// returns.
struct Exchanged {
  std::vector<Tensor> inputs, query_sums, key_sums;
};
Exchanged exchanged(Pass pass) {
  if (pass == Pass::forward) return {{Tensor::q, Tensor::k, Tensor::v}, {Tensor::o, Tensor::lse}, {}};
  return {{Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d, Tensor::k, Tensor::v},
          {Tensor::dq},
          {Tensor::dk, Tensor::dv}};
}

/// Steps of a plan: one in which inputs are exchanged while each rank computes within its own shard; those of
/// `between_`, of which the last one with computes takes a step for each rank of a group, so that the sums of
/// one rank's queries return while those of the next are computed; in a backward pass, one in which dK and dV
/// return; and the one that waits for what is still under way.
///
/// Slots of a rank, by tensor: 1 … H−1 what the other ranks of its group own; behind them H for each exchange
/// slot of `between_`, by place of the owner.
class HeadExchange {
 public:
  HeadExchange(const Problem& problem, const Grid& grid, const Plan& between)
      : shard_pairs_(problem), grid_(grid), between_(between), tensors_(exchanged(between.pass)) {
    if (between_.steps == 0) return;
    const PositionMap all = Layout().shard(problem.mask.tokens(), 1, 0);
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      const PositionMap owned = problem.owned(rank);
      const std::int64_t rows = problem.shard(rank).count;
      queries_.push_back(first_rows(attending_queries(problem.mask, owned, all), rows));
      keys_.push_back(first_rows(attended_keys(problem.mask, all, owned), rows));
    }
    while (!computes_in(last_computes_)) --last_computes_;
    for (int place = 1; place < size(); ++place) {
      shares_kv_heads_ |= kv_heads(place - 1).end > kv_heads(place).begin;
    }
    steps_ = first(between_.steps) + (tensors_.key_sums.empty() ? 1 : 2);
  }

  int steps() const { return steps_; }

  /// The ranks of a group follow one another, so the groups' period counts their ranks.
  int period() const {
    const bool same =
        grid_.placement == GridPlacement::head_first && shard_pairs_.all_active() && shard_pairs_.even();
    return same ? between_.period * size() : 0;
  }

  Step step(int rank, int t) const {
    const Self self{rank, grid_.ring_rank(rank, ranks()), grid_.ulysses_rank(rank, ranks())};
    Step step;
    if (t == 0) {
      exchange_inputs(step, self);
    } else if (t <= last_computes_) {
      run(step, self, t - 1, std::nullopt);
    } else if (const int turn = t - first(last_computes_); turn < size()) {
      run(step, self, last_computes_, turn);
      if (turn > 0) return_queries(step, self, t, turn);
    } else if (const int inner = t - size(); inner < between_.steps) {
      run(step, self, inner, std::nullopt);
    } else if (inner == between_.steps && !tensors_.key_sums.empty()) {
      return_keys(step, self, t);
    }
    return step;
  }

 private:
  struct Self {
    int rank, ring_rank, ulysses_rank;
  };

  const Problem& problem() const { return shard_pairs_.problem(); }
  int ranks() const { return shard_pairs_.ranks(); }
  int size() const { return grid_.ulysses_degree; }
  int rank_at(int ring_rank, int ulysses_rank) const { return grid_.rank(ring_rank, ulysses_rank, ranks()); }
  /// The rank of the group that is `places` behind.
  int member(const Self& self, int places) const {
    return rank_at(self.ring_rank, place_behind(self, places));
  }
  int place_behind(const Self& self, int places) const {
    return ((self.ulysses_rank + places) % size() + size()) % size();
  }

  HeadRange heads(int place) const {
    return {problem().heads * place / size(), problem().heads * (place + 1) / size()};
  }
  HeadRange kv_heads(int place) const {
    const HeadRange own = heads(place);
    return {own.begin / problem().group(), (own.end - 1) / problem().group() + 1};
  }

  /// What of a rank's shard somebody needs, for the heads of the rank at `place` of a group.
  TensorSlice slice(Tensor tensor, int owner, int place) const {
    const bool query = is_query_side(tensor);
    return {tensor, owner, (query ? queries_ : keys_)[static_cast<std::size_t>(owner)],
            query ? heads(place) : kv_heads(place)};
  }

  /// What of it belongs to a slice of the group's shard, whose rows the ranks hold one after the other.
  TensorSlice slice(const TensorSlice& of_group, int owner_place, int place) const {
    TensorSlice own = slice(of_group.tensor, rank_at(of_group.owner, owner_place), place);
    const std::int64_t rows = between_.problem.owned(of_group.owner).count;
    const std::int64_t first = rows * owner_place / size();
    own.rows = intersection(own.rows, {of_group.rows.begin - first, of_group.rows.end - first});
    return own;
  }

  RowRange rows_at(int place, const Self& self, const TensorSlice& of_group) const {
    return slice(of_group, place, self.ulysses_rank).rows;
  }

  /// The slot of this rank for the shard of the rank at `place`, where the group's plan has `slot`.
  Slot slot(const Self& self, Slot slot, int place) const {
    if (slot != local_slot) return size() * slot + place;
    return place == self.ulysses_rank ? local_slot : place_behind({0, 0, place}, -self.ulysses_rank);
  }

  /// Step of the plan at which step `inner` of the group's plan begins.
  int first(int inner) const { return inner + (inner <= last_computes_ ? 1 : size()); }

  bool computes_in(int inner) const {
    for (int ring_rank = 0; ring_rank < grid_.ring_degree(ranks()); ++ring_rank) {
      if (!between_.step(ring_rank, inner).computes.empty()) return true;
    }
    return inner == 0;
  }

  static void add(std::vector<Transfer>& transfers, Transfer transfer, int wait) {
    if (transfer.slice.rows.empty()) return;
    transfer.wait = wait;
    transfers.push_back(transfer);
  }

  // --- Within a group --------------------------------------------------------------------------------------

  void exchange_inputs(Step& step, const Self& self) const {
    for (int places = 1; places < size(); ++places) {
      const int to = member(self, places), from = member(self, -places);
      const int their_place = place_behind(self, places), landing = place_behind(self, -places);
      for (const Tensor tensor : tensors_.inputs) {
        add(step.sends,
            transfer(problem(), slice(tensor, self.rank, their_place), Channel::activations, to, local_slot,
                     0),
            1);
        add(step.receives,
            transfer(problem(), slice(tensor, from, self.ulysses_rank), Channel::activations, from,
                     slot(self, local_slot, landing), 0),
            1);
      }
      for (const auto* sums : {&tensors_.query_sums, &tensors_.key_sums}) {
        for (const Tensor tensor : *sums) {
          const TensorSlice cleared = slice(tensor, from, self.ulysses_rank);
          if (!cleared.rows.empty()) step.clears.push_back({cleared, slot(self, local_slot, landing)});
        }
      }
    }
    if (shard_pairs_.any(self.rank, self.rank)) {
      step.computes.push_back(work(self, self.rank, self.rank));
    }
  }

  /// The sums of the queries of the rank whose turn was last; they wait until all have returned, so that
  /// ranks whose turns take longer hold up nobody.
  void return_queries(Step& step, const Self& self, int t, int turn) const {
    const int to = member(self, -turn), from = member(self, turn);
    const int arrival = first(between_.steps);
    for (const Tensor tensor : tensors_.query_sums) {
      add(step.sends,
          transfer(problem(), slice(tensor, to, self.ulysses_rank), Channel::gradients, to,
                   slot(self, local_slot, place_behind(self, -turn)), t),
          arrival);
      add(step.receives,
          transfer(problem(), slice(tensor, self.rank, place_behind(self, turn)), Channel::gradients, from,
                   local_slot, t),
          arrival);
    }
  }

  void return_keys(Step& step, const Self& self, int t) const {
    for (int places = 1; places < size(); ++places) {
      const int to = member(self, -places), from = member(self, places);
      for (const Tensor tensor : tensors_.key_sums) {
        add(step.sends,
            transfer(problem(), slice(tensor, to, self.ulysses_rank), Channel::gradients, to,
                     slot(self, local_slot, place_behind(self, -places)), t),
            t + 1);
        Transfer receive = transfer(problem(), slice(tensor, self.rank, place_behind(self, places)),
                                    Channel::gradients, from, local_slot, t);
        if (shares_kv_heads_) {  // other ranks return sums of the same heads
          receive.slot = slot(self, 1, places);
          receive.on_receive = OnReceive::add;
        }
        add(step.receives, receive, t + 1);
      }
    }
  }

  // --- Between groups --------------------------------------------------------------------------------------

  /// Step `inner` of the group's plan, or, with `turn`, the part of it with the queries of one rank of the
  /// group: its own last.
  void run(Step& step, const Self& self, int inner, std::optional<int> turn) const {
    const Step group = between_.step(self.ring_rank, inner);
    if (turn.value_or(0) == 0) {
      for (const Clear& clear : group.clears) {
        for (int place = 0; place < size(); ++place) {
          const TensorSlice cleared = slice(clear.slice, place, self.ulysses_rank);
          if (!cleared.rows.empty()) step.clears.push_back({cleared, slot(self, clear.slot, place)});
        }
      }
      for (const Transfer& send : group.sends) translate(step.sends, self, send);
      for (const Transfer& receive : group.receives) translate(step.receives, self, receive);
    }
    for (const Compute& compute : group.computes) {
      for (int q = 0; q < size(); ++q) {
        if (turn && q != place_behind(self, -1 - *turn)) continue;
        for (int kv = 0; kv < size(); ++kv) translate(step, self, compute, q, kv);
      }
    }
  }

  void translate(std::vector<Transfer>& transfers, const Self& self, const Transfer& group) const {
    for (int place = 0; place < size(); ++place) {
      Transfer own = group;
      own.slice = slice(group.slice, place, self.ulysses_rank);
      own.peer = rank_at(group.peer, self.ulysses_rank);
      own.slot = slot(self, group.slot, place);
      own.target = group.on_receive == OnReceive::store ? local_slot : slot(self, group.target, place);
      own.post = first(group.post);
      add(transfers, own, first(group.wait));
    }
  }

  void translate(Step& step, const Self& self, const Compute& group, int q, int kv) const {
    const int q_rank = rank_at(group.q_shard, q), kv_rank = rank_at(group.kv_shard, kv);
    const bool done_before = q_rank == self.rank && kv_rank == self.rank;  // while inputs were exchanged
    if (done_before || !shard_pairs_.any(q_rank, kv_rank)) return;
    Compute own = work(self, q_rank, kv_rank);
    if (between_.problem.ranks() > 1) {
      // Of a shard only those rows are there that the other group needs.
      own.q_rows = intersection(own.q_rows, rows_at(q, self, {Tensor::q, group.q_shard, group.q_rows, {}}));
      own.kv_rows =
          intersection(own.kv_rows, rows_at(kv, self, {Tensor::k, group.kv_shard, group.kv_rows, {}}));
      if (own.q_rows.empty() || own.kv_rows.empty()) return;
      if (problem().mask.is_empty(problem().shard(q_rank).slice(own.q_rows),
                                  problem().shard(kv_rank).slice(own.kv_rows)))
        return;
    }
    own.q_slot = slot(self, group.q_slot, q);
    own.kv_slot = slot(self, group.kv_slot, kv);
    own.out_slot = slot(self, group.out_slot, q);
    own.kv_grad_slot = slot(self, group.kv_grad_slot, kv);
    step.computes.push_back(own);
  }

  Compute work(const Self& self, int q_rank, int kv_rank) const {
    const ActiveRows active = shard_pairs_.cuts() ? shard_pairs_.of(q_rank, kv_rank)
                                                  : ActiveRows{queries_[static_cast<std::size_t>(q_rank)],
                                                               keys_[static_cast<std::size_t>(kv_rank)]};
    Compute work = compute(problem(), q_rank, kv_rank, active);
    work.heads = heads(self.ulysses_rank);
    return work;
  }

  ShardPairs shard_pairs_;
  Grid grid_;
  Plan between_;
  Exchanged tensors_;
  std::vector<RowRange> queries_, keys_;  // of each rank, those that attend and that are attended to
  int last_computes_ = between_.steps - 1;
  bool shares_kv_heads_ = false;
  int steps_ = 0;
};

}  // namespace

Plan exchange_heads(std::string schedule, const Problem& problem, const Grid& grid, const Plan& between) {
  if (grid.ulysses_degree == 1) {
    Plan plan = between;
    plan.schedule = std::move(schedule);
    plan.problem = problem;
    return plan;
  }
  return lazy_plan(std::move(schedule), problem, between.pass,
                   std::make_shared<const HeadExchange>(problem, grid, between));
}

}  // namespace annulus::plan
