#include "attention/plan/builders/circulation.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "attention/plan/builders/head_turns.hpp"
#include "attention/plan/builders/parts.hpp"
#include "attention/plan/builders/tail.hpp"
#include "attention/plan/builders/timetable.hpp"

namespace annulus::plan {
namespace {

// Exchange slots. Inputs use the first four, gradients all.
constexpr Slot inner_slots = 1;           // 1 and 2: remote hops of the inner ring, in turn
constexpr Slot inner_landing = 3;         // a sum that is to be added to this rank's partial sum
constexpr Slot inner_return_landing = 4;  // a sum that returns while `inner_landing` is taken
constexpr Slot outer_input_slots = 3;     // 3 and 4: remote hops of the outer ring, in turn
constexpr Slot outer_sum_slots = 5;       // 5 and 6: the same of sums
constexpr Slot outer_landing = 7;
constexpr Slot outer_return_landing = 8;

Slot in_turn(Slot first, int hop) {
  return first + (hop - 1) % 2;
}

Slot input_slot(Hop hop) {
  if (hop.inner > 0) return in_turn(inner_slots, hop.inner);
  return hop.outer > 0 ? in_turn(outer_input_slots, hop.outer) : local_slot;
}

Slot sum_slot(Hop hop) {
  if (hop.inner > 0) return in_turn(inner_slots, hop.inner);
  return hop.outer > 0 ? in_turn(outer_sum_slots, hop.outer) : local_slot;
}

/// One of the rings that a rank is part of, at one hop of the shards on it.
struct Ring {
  bool inner = true;
  Hop at;

  int hop() const { return inner ? at.inner : at.outer; }
  Hop hop_of(int number) const { return inner ? Hop{at.outer, number} : Hop{number, 0}; }
  Hop base() const { return hop_of(0); }
  Hop following() const { return hop_of(hop() + 1); }
  HopSpan span(const RingRoutes& routes, int owner) const {
    return inner ? routes.inner(owner, at.outer) : routes.outer(owner);
  }
  RowRange rows(const RingRoutes& routes, int owner, Hops hops) const {
    return inner ? routes.inner_rows(owner, at.outer, hops) : routes.outer_rows(owner, hops);
  }
  /// The ring has another hop.
  bool goes_on(const RingRoutes& routes) const {
    return hop() < (inner ? routes.last_inner(at.outer) : routes.last_outer());
  }
  Channel inputs() const { return inner ? Channel::activations : Channel::outer_activations; }
  Channel sums() const { return inner ? Channel::gradients : Channel::outer_gradients; }
};

class Circulation {
 public:
  Circulation(const Problem& problem, CirculatedTensors circulated, Rings rings)
      : circulated_(std::move(circulated)),
        sums_(circulated_.gradients.empty() ? SumTiming::none
              : rings.gradients_alone       ? SumTiming::alone
                                            : SumTiming::overlapped),
        routes_(problem, circulated_.side, rings.inner_size),
        timetable_(longest_rounds(), rings.inner_size, sums_) {
    count_steps();
  }

  int steps() const { return steps_; }
  /// Step of the last computes.
  int last_compute() const { return last_compute_; }
  /// Sums are still under way when all is computed.
  bool has_tail() const { return sums_ == SumTiming::overlapped && steps_ > last_compute_ + 1; }

  /// Every inner ring does the same, as far as every shard goes everywhere as a whole.
  int period() const {
    const ShardPairs& shard_pairs = routes_.shard_pairs();
    const bool same = shard_pairs.all_active() && !shard_pairs.cuts() && shard_pairs.even();
    if (!same) return 0;
    return routes_.outer_size() == 1 ? 1 : routes_.inner_size();
  }

  bool queries_stay() const { return circulated_.side == Side::key; }

  Step step(int rank, int t) const {
    Step step;
    const std::optional<Hop> round = timetable_.round_computed(t);
    if (const auto loop = timetable_.loop_begun(t)) {
      move_inputs(step, rank, {false, {*loop, 0}}, t, timetable_.inputs_arrive(*loop));
    }
    if (round) move_inputs(step, rank, {true, *round}, t, t + 1);
    if (sums_ != SumTiming::none) {
      if (const auto loop = timetable_.loop_summed(t)) {
        move_sums(step, rank, {false, {*loop, 0}}, t, timetable_.sums_arrive(*loop));
      }
      if (const auto before = timetable_.round_computed(t - 1)) {
        move_sums(step, rank, {true, *before}, t, t + 1);
      }
    }
    if (round) compute(step, rank, *round);
    return step;
  }

 private:
  const Problem& problem() const { return routes_.shard_pairs().problem(); }

  /// Rounds of each loop.
  std::vector<int> longest_rounds() const {
    std::vector<int> rounds;
    for (int loop = 0; loop <= routes_.last_outer(); ++loop) {
      rounds.push_back(std::max(routes_.last_inner(loop), 0) + 1);
    }
    return rounds;
  }

  void count_steps() {
    for (int loop = 0; loop <= routes_.last_outer(); ++loop) {
      const int last = routes_.last_inner(loop);
      if (last < 0) continue;
      // A sum that returns to its owner is sent in the step after the last compute and waited for in the one
      // after that.
      const bool returns = sums_ != SumTiming::none && last > 0;
      last_compute_ = std::max(last_compute_, timetable_.computing({loop, last}));
      steps_ = std::max(steps_, timetable_.computing({loop, last}) + (returns ? 3 : 1));
    }
    if (sums_ != SumTiming::none && routes_.last_outer() > 0) {
      steps_ = std::max(steps_, timetable_.sums_arrive(routes_.last_outer()) + 1);
    }
  }

  /// Rows of a shard that are sent to a hop: those that somebody from there on needs.
  RowRange input_rows(int owner, const Ring& ring, int hop) const {
    return ring.rows(routes_, owner, {hop, ring.span(routes_, owner).last});
  }

  /// Rows of a sum that leaves a hop: those to which somebody has added. Where each rank computes on top of
  /// what has arrived, the sum has its rows from the beginning.
  RowRange sum_rows(int owner, const Ring& ring, int hop) const {
    const HopSpan span = ring.span(routes_, owner);
    return ring.rows(routes_, owner, {span.first, sums_ == SumTiming::alone ? span.last : hop});
  }

  /// When a transfer is posted and waited for, and on which channel.
  struct Post {
    Channel channel;
    int post, wait;
  };

  Transfer transfer(const TensorSlice& slice, int peer, Slot slot, const Post& at) const {
    Transfer transfer = plan::transfer(problem(), slice, at.channel, peer, slot, at.post);
    transfer.wait = at.wait;
    return transfer;
  }

  /// The shard of this hop goes on and that of the following one comes, while this rank computes.
  void move_inputs(Step& step, int rank, const Ring& ring, int post, int wait) const {
    if (!ring.goes_on(routes_)) return;
    const Hop following = ring.following();
    const int leaving = routes_.owner_at(rank, ring.at), coming = routes_.owner_at(rank, following);
    const bool sends = ring.hop() < ring.span(routes_, leaving).last;
    const bool receives = ring.hop() + 1 <= ring.span(routes_, coming).last;
    const RowRange sent = sends ? input_rows(leaving, ring, ring.hop() + 1) : RowRange{};
    const RowRange received = receives ? input_rows(coming, ring, ring.hop() + 1) : RowRange{};
    const Post at{ring.inputs(), post, wait};
    for (const Tensor tensor : circulated_.inputs) {
      if (sends) {
        step.sends.push_back(transfer(part(problem(), tensor, leaving, sent),
                                      routes_.rank_at(leaving, following), input_slot(ring.at), at));
      }
      if (receives) {
        step.receives.push_back(transfer(part(problem(), tensor, coming, received),
                                         routes_.rank_at(coming, ring.at), input_slot(following), at));
      }
    }
  }

  /// The sum of this hop goes on, or from the last hop back to its owner; the sum that this rank adds to, or
  /// relays, comes.
  void move_sums(Step& step, int rank, const Ring& ring, int post, int wait) const {
    const Hop following = ring.following();
    const bool goes_on = ring.goes_on(routes_);
    const int leaving = routes_.owner_at(rank, ring.at), own = routes_.owner_at(rank, ring.base());
    const int coming = goes_on ? routes_.owner_at(rank, following) : rank;
    const HopSpan leaving_span = ring.span(routes_, leaving), coming_span = ring.span(routes_, coming),
                  own_span = ring.span(routes_, own);
    const bool sends = leaving_span.sums(ring.hop());
    const bool passing = goes_on && coming_span.sums(ring.hop() + 1) && ring.hop() + 1 > coming_span.first;
    const bool adding = passing && adds(coming, ring);  // otherwise this rank relays, or computes on top
    const bool returning = own_span.sums(ring.hop()) && ring.hop() == own_span.last;
    const Slot landing = ring.inner ? inner_landing : outer_landing;
    const Slot return_landing = !adding ? landing : ring.inner ? inner_return_landing : outer_return_landing;
    const RowRange sent = sends ? sum_rows(leaving, ring, ring.hop()) : RowRange{};
    const RowRange passed = passing ? sum_rows(coming, ring, ring.hop()) : RowRange{};
    const RowRange returned = returning ? sum_rows(own, ring, ring.hop()) : RowRange{};
    const Post at{ring.sums(), post, wait};
    for (const Tensor tensor : circulated_.gradients) {
      if (sends) {
        const Hop to = ring.hop() == leaving_span.last ? ring.base() : following;
        step.sends.push_back(transfer(part(problem(), tensor, leaving, sent), routes_.rank_at(leaving, to),
                                      sum_slot(ring.at), at));
      }
      if (passing) {
        Transfer receive = transfer(part(problem(), tensor, coming, passed), routes_.rank_at(coming, ring.at),
                                    adding ? landing : sum_slot(following), at);
        receive.on_receive = adding ? OnReceive::add : OnReceive::store;
        if (adding) receive.target = sum_slot(following);
        step.receives.push_back(receive);
      }
      if (returning) {
        Transfer receive = transfer(part(problem(), tensor, own, returned), routes_.rank_at(own, ring.at),
                                    return_landing, at);
        receive.on_receive = OnReceive::add;
        receive.target = sum_slot(ring.base());
        step.receives.push_back(receive);
      }
    }
  }

  /// A sum that comes to the following hop meets a partial sum there.
  bool adds(int coming, const Ring& ring) const {
    if (sums_ == SumTiming::alone) return false;
    const Hop following = ring.following();
    return ring.inner ? routes_.needs(coming, following) : routes_.inner_ring_needs(coming, following.outer);
  }

  void compute(Step& step, int rank, Hop round) const {
    const int owner = routes_.owner_at(rank, round);
    if (begins_sum(owner, round)) {
      const Ring ring{round.inner > 0, round};
      const RowRange rows = sum_rows(owner, ring, ring.hop());
      for (const Tensor tensor : circulated_.gradients) {
        step.clears.push_back({part(problem(), tensor, owner, rows), sum_slot(round)});
      }
    }
    if (!routes_.needs(owner, round)) return;
    const bool queries = circulated_.side == Side::query;
    const int q = queries ? owner : rank, kv = queries ? rank : owner;
    const ShardPairs& shard_pairs = routes_.shard_pairs();
    Compute compute =
        plan::compute(problem(), q, kv,
                      shard_pairs.cuts() ? shard_pairs.of(q, kv)
                                         : ActiveRows{shard_pairs.all_rows(q), shard_pairs.all_rows(kv)});
    (queries ? compute.q_slot : compute.kv_slot) = input_slot(round);
    if (sums_ != SumTiming::none) (queries ? compute.out_slot : compute.kv_grad_slot) = sum_slot(round);
    step.computes.push_back(compute);
  }

  /// A partial sum begins here, not on top of what has arrived: in the inner ring's own slot as soon as any
  /// of its ranks will add to it.
  bool begins_sum(int owner, Hop round) const {
    if (sums_ == SumTiming::none || sum_slot(round) == local_slot) return false;
    const bool inner = round.inner > 0;
    const HopSpan span = inner ? routes_.inner(owner, round.outer) : routes_.outer(owner);
    const bool adds = inner ? routes_.needs(owner, round) : routes_.inner_ring_needs(owner, round.outer);
    const bool arrived = sums_ == SumTiming::alone && (inner ? round.inner : round.outer) > span.first;
    return adds && !arrived;
  }

  CirculatedTensors circulated_;
  SumTiming sums_;
  RingRoutes routes_;
  Timetable timetable_;
  int steps_ = 0, last_compute_ = 0;
};

}  // namespace

CirculatedTensors circulate_kv(Pass pass) {
  CirculatedTensors circulated{Side::key, {Tensor::k, Tensor::v}, {}};
  if (pass == Pass::backward) circulated.gradients = {Tensor::dk, Tensor::dv};
  return circulated;
}

CirculatedTensors circulate_q() {
  return {Side::query, {Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d}, {Tensor::dq}};
}

namespace {

/// In how many turns the heads go round. A two-level ring has buffers for both levels, twice those of a flat
/// one. Where messages are long, half of the heads at a time need half of them, and messages of half the
/// length take no longer. Gradients that travel alone would travel beside the next turn.
int head_turns(const Problem& problem, const CirculatedTensors& circulated, const Rings& rings) {
  constexpr std::int64_t long_message = std::int64_t{64} << 20;
  const bool flat = rings.inner_size == problem.ranks();
  if (flat || rings.gradients_alone || !rings.cuts_heads || problem.kv_heads % 2 != 0) return 1;
  const Tensor input = circulated.inputs.front();
  const std::int64_t bytes =
      problem.elements(problem.whole(input, 0)) * static_cast<std::int64_t>(size_of(problem.wire(input)));
  return bytes >= long_message ? 2 : 1;
}

}  // namespace

Plan circulate(std::string schedule, const Problem& problem, Pass pass, CirculatedTensors circulated,
               Rings rings) {
  problem.check();
  const int turns = head_turns(problem, circulated, rings);
  Problem of_turn = problem;
  of_turn.heads /= turns;
  of_turn.kv_heads /= turns;
  const Tensor gradient = circulated.gradients.empty() ? Tensor::dq : circulated.gradients.front();
  const auto circulation = std::make_shared<const Circulation>(of_turn, std::move(circulated), rings);
  HeadTurn first{lazy_plan(std::move(schedule), of_turn, pass, circulation), circulation->last_compute()};
  const int parts = circulation->has_tail() && rings.cuts_heads ? tail_parts(of_turn, gradient) : 1;
  if (parts > 1) {
    first.plan = overlap_tail(first.plan, first.last_compute, parts);
    first.last_compute += first.plan.parts.defers ? parts : parts - 1;
  }
  return turns > 1 ? in_turns(problem, std::move(first), turns) : first.plan;
}

}  // namespace annulus::plan
