#include "plan/circulation.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <annulus/base/error.hpp>

#include "plan/timetable.hpp"

namespace annulus::plan {
namespace {

// Exchange slots. Inputs use the first four, gradients all.
constexpr Slot inner_slots = 1;               // 1 and 2: foreign hops of the inner ring, in turn
constexpr Slot inner_landing = 3;             // a sum that is to be added to this rank's partial sum
constexpr Slot inner_homecoming_landing = 4;  // a sum coming home while `inner_landing` is taken
constexpr Slot outer_input_slots = 3;         // 3 and 4: foreign hops of the outer ring, in turn
constexpr Slot outer_sum_slots = 5;           // 5 and 6: the same of sums
constexpr Slot outer_landing = 7;
constexpr Slot outer_homecoming_landing = 8;

Slot in_turn(Slot first, int hop) {
  return first + (hop - 1) % 2;
}

Slot input_slot(Hop hop) {
  if (hop.inner > 0) return in_turn(inner_slots, hop.inner);
  return hop.outer > 0 ? in_turn(outer_input_slots, hop.outer) : home;
}

Slot sum_slot(Hop hop) {
  if (hop.inner > 0) return in_turn(inner_slots, hop.inner);
  return hop.outer > 0 ? in_turn(outer_sum_slots, hop.outer) : home;
}

/// One of the rings that a rank is part of, at one hop of the shards on it.
struct Ring {
  bool inner = true;
  Hop at;

  int hop() const { return inner ? at.inner : at.outer; }
  Hop hop_of(int number) const { return inner ? Hop{at.outer, number} : Hop{number, 0}; }
  Hop base() const { return hop_of(0); }
  Hop following() const { return hop_of(hop() + 1); }
  Span span(const Reach& reach, int owner) const {
    return inner ? reach.inner(owner, at.outer) : reach.outer(owner);
  }
  Channel inputs() const { return inner ? Channel::activations : Channel::outer_activations; }
  Channel sums() const { return inner ? Channel::gradients : Channel::outer_gradients; }
};

class Circulation {
 public:
  Circulation(const Problem& problem, Travellers travellers, Rings rings)
      : travellers_(std::move(travellers)),
        sums_(travellers_.gradients.empty() ? Sums::none
              : rings.gradients_alone       ? Sums::alone
                                            : Sums::overlapped),
        reach_(problem, travellers_.side, rings.group_size),
        timetable_(longest_rounds(), rings.group_size, sums_) {
    for (int owner = 0; owner < problem.ranks(); ++owner) count_steps(owner);
  }

  int steps() const { return steps_; }

  Step step(int rank, int t) const {
    require(rank >= 0 && rank < problem().ranks(), "plan: rank {} is not one of the {} ranks", rank,
            problem().ranks());
    require(t >= 0 && t < steps_, "plan: step {} is not one of the {} steps", t, steps_);
    Step step;
    const std::optional<Hop> round = timetable_.round_computed(t);
    if (const auto loop = timetable_.loop_begun(t)) {
      move_inputs(step, rank, {false, {*loop, 0}}, t, timetable_.inputs_arrive(*loop));
    }
    if (round) move_inputs(step, rank, {true, *round}, t, t + 1);
    if (sums_ != Sums::none) {
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
  const Problem& problem() const { return reach_.problem(); }

  /// Rounds of each loop.
  std::vector<int> longest_rounds() const {
    std::vector<int> rounds;
    for (int owner = 0; owner < problem().ranks(); ++owner) {
      const int loops = reach_.outer(owner).last + 1;
      rounds.resize(std::max(rounds.size(), static_cast<std::size_t>(loops)), 1);
      for (int loop = 0; loop < loops; ++loop) {
        auto& longest = rounds[static_cast<std::size_t>(loop)];
        longest = std::max(longest, reach_.inner(owner, loop).last + 1);
      }
    }
    return rounds;
  }

  void count_steps(int owner) {
    const Span groups = reach_.outer(owner);
    for (int loop = 0; loop <= groups.last; ++loop) {
      const Span ranks = reach_.inner(owner, loop);
      if (ranks.last < 0) continue;
      // A sum that comes home is sent in the step after the last compute and waited for in the one after
      // that.
      const bool returns = sums_ != Sums::none && ranks.first > 0;
      steps_ = std::max(steps_, timetable_.computing({loop, ranks.last}) + (returns ? 3 : 1));
    }
    if (sums_ != Sums::none && groups.first > 0) {
      steps_ = std::max(steps_, timetable_.sums_arrive(groups.last) + 1);
    }
  }

  Transfer transfer(Tensor tensor, int owner, Channel channel, int peer, Slot slot, int post,
                    int wait) const {
    Transfer transfer;
    transfer.piece = problem().whole(tensor, owner);
    transfer.wire = problem().wire(tensor);
    transfer.channel = channel;
    transfer.peer = peer;
    transfer.slot = slot;
    transfer.post = post;
    transfer.wait = wait;
    return transfer;
  }

  /// The shard of this hop goes on and that of the following one comes, while this rank computes.
  void move_inputs(Step& step, int rank, const Ring& ring, int post, int wait) const {
    const Hop following = ring.following();
    const int leaving = reach_.owner_at(rank, ring.at), coming = reach_.owner_at(rank, following);
    const bool sends = ring.hop() < ring.span(reach_, leaving).last;
    const bool receives = ring.hop() + 1 <= ring.span(reach_, coming).last;
    for (const Tensor tensor : travellers_.inputs) {
      if (sends) {
        step.sends.push_back(transfer(tensor, leaving, ring.inputs(), reach_.rank_at(leaving, following),
                                      input_slot(ring.at), post, wait));
      }
      if (receives) {
        step.receives.push_back(transfer(tensor, coming, ring.inputs(), reach_.rank_at(coming, ring.at),
                                         input_slot(following), post, wait));
      }
    }
  }

  /// What has been summed up at this hop goes on, or home from the last one; what this rank adds to, or
  /// relays, comes.
  void move_sums(Step& step, int rank, const Ring& ring, int post, int wait) const {
    const Hop following = ring.following();
    const int leaving = reach_.owner_at(rank, ring.at), coming = reach_.owner_at(rank, following);
    const int own = reach_.owner_at(rank, ring.base());
    const Span leaving_span = ring.span(reach_, leaving), coming_span = ring.span(reach_, coming),
               own_span = ring.span(reach_, own);
    const bool sends = leaving_span.sums(ring.hop());
    const bool passing = coming_span.sums(ring.hop() + 1) && ring.hop() + 1 > coming_span.first;
    const bool adding = passing && adds(coming, ring);  // otherwise this rank relays, or computes on top
    const bool homecoming = own_span.sums(ring.hop()) && ring.hop() == own_span.last;
    const Slot landing = ring.inner ? inner_landing : outer_landing;
    const Slot homecoming_landing = !adding      ? landing
                                    : ring.inner ? inner_homecoming_landing
                                                 : outer_homecoming_landing;
    for (const Tensor tensor : travellers_.gradients) {
      if (sends) {
        const Hop to = ring.hop() == leaving_span.last ? ring.base() : following;
        step.sends.push_back(transfer(tensor, leaving, ring.sums(), reach_.rank_at(leaving, to),
                                      sum_slot(ring.at), post, wait));
      }
      if (passing) {
        Transfer receive = transfer(tensor, coming, ring.sums(), reach_.rank_at(coming, ring.at),
                                    adding ? landing : sum_slot(following), post, wait);
        receive.arrival = adding ? Arrival::add : Arrival::store;
        if (adding) receive.target = sum_slot(following);
        step.receives.push_back(receive);
      }
      if (homecoming) {
        Transfer receive =
            transfer(tensor, own, ring.sums(), reach_.rank_at(own, ring.at), homecoming_landing, post, wait);
        receive.arrival = Arrival::add;
        receive.target = sum_slot(ring.base());
        step.receives.push_back(receive);
      }
    }
  }

  /// A sum that comes to the following hop meets a partial sum there.
  bool adds(int coming, const Ring& ring) const {
    if (sums_ == Sums::alone) return false;
    const Hop following = ring.following();
    return ring.inner ? reach_.needs(coming, following) : reach_.group_needs(coming, following.outer);
  }

  void compute(Step& step, int rank, Hop round) const {
    const int owner = reach_.owner_at(rank, round);
    if (begins_sum(owner, round)) {
      for (const Tensor tensor : travellers_.gradients) {
        step.clears.push_back({problem().whole(tensor, owner), sum_slot(round)});
      }
    }
    if (!reach_.needs(owner, round)) return;
    Compute compute;
    const bool queries = travellers_.side == Side::query;
    compute.q_shard = queries ? owner : rank;
    compute.kv_shard = queries ? rank : owner;
    compute.q_rows = problem().whole(Tensor::q, compute.q_shard).rows;
    compute.kv_rows = problem().whole(Tensor::k, compute.kv_shard).rows;
    compute.heads = {0, problem().heads};
    (queries ? compute.q_slot : compute.kv_slot) = input_slot(round);
    if (sums_ != Sums::none) (queries ? compute.out_slot : compute.kv_grad_slot) = sum_slot(round);
    step.computes.push_back(compute);
  }

  /// A partial sum begins here, not on top of what has arrived: in the group's own slot as soon as any of its
  /// ranks will add to it.
  bool begins_sum(int owner, Hop round) const {
    if (sums_ == Sums::none || sum_slot(round) == home) return false;
    const bool inner = round.inner > 0;
    const Span span = inner ? reach_.inner(owner, round.outer) : reach_.outer(owner);
    const bool adds = inner ? reach_.needs(owner, round) : reach_.group_needs(owner, round.outer);
    const bool arrived = sums_ == Sums::alone && (inner ? round.inner : round.outer) > span.first;
    return adds && !arrived;
  }

  Travellers travellers_;
  Sums sums_;
  Reach reach_;
  Timetable timetable_;
  int steps_ = 0;
};

}  // namespace

Travellers keys_travel(Pass pass) {
  Travellers travellers{Side::key, {Tensor::k, Tensor::v}, {}};
  if (pass == Pass::backward) travellers.gradients = {Tensor::dk, Tensor::dv};
  return travellers;
}

Travellers queries_travel() {
  return {Side::query, {Tensor::q, Tensor::d_o, Tensor::lse, Tensor::d}, {Tensor::dq}};
}

Plan circulate(std::string schedule, const Problem& problem, Pass pass, Travellers travellers, Rings rings) {
  problem.check();
  const auto circulation = std::make_shared<const Circulation>(problem, std::move(travellers), rings);
  Plan plan;
  plan.schedule = std::move(schedule);
  plan.pass = pass;
  plan.problem = problem;
  plan.steps = circulation->steps();
  plan.step = [circulation](int rank, int step) { return circulation->step(rank, step); };
  return plan;
}

}  // namespace annulus::plan
