#include "plan/circulation.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::plan {
namespace {

class Circulation {
 public:
  Circulation(const Problem& problem, Travellers travellers)
      : travellers_(std::move(travellers)), reach_(problem, travellers_.side) {
    for (int owner = 0; owner < problem.ranks(); ++owner) {
      // A sum that comes home is sent in the step after the last compute and waited for in the one after
      // that.
      const bool returns = !travellers_.gradients.empty() && reach_.first(owner) > 0;
      steps_ = std::max(steps_, reach_.last(owner) + (returns ? 3 : 1));
    }
  }

  int steps() const { return steps_; }

  Step step(int rank, int t) const {
    require(rank >= 0 && rank < problem().ranks(), "plan: rank {} is not one of the {} ranks", rank,
            problem().ranks());
    require(t >= 0 && t < steps_, "plan: step {} is not one of the {} steps", t, steps_);
    Step step;
    move_inputs(step, rank, t);
    if (!travellers_.gradients.empty() && t > 0) {
      send_gradients(step, rank, t);
      receive_gradients(step, rank, t);
    }
    compute(step, rank, t);
    return step;
  }

 private:
  static constexpr Slot landing = 3;             // a sum that is to be added to this rank's partial sum
  static constexpr Slot homecoming_landing = 4;  // a sum coming home while `landing` is taken

  static Slot input_slot(int hop) { return hop == 0 ? home : 1 + (hop - 1) % 2; }
  static Slot partial_slot(int hop) { return hop == 0 ? home : 1 + (hop - 1) % 2; }

  const Problem& problem() const { return reach_.problem(); }
  int next(int rank) const { return reach_.rank_at(rank, 1); }
  int previous(int rank) const { return reach_.owner_at(rank, 1); }

  Transfer transfer(Tensor tensor, int owner, Channel channel, int peer, Slot slot, int post) const {
    Transfer transfer;
    transfer.piece = problem().whole(tensor, owner);
    transfer.wire = problem().wire(tensor);
    transfer.channel = channel;
    transfer.peer = peer;
    transfer.slot = slot;
    transfer.post = post;
    transfer.wait = post + 1;
    return transfer;
  }

  /// The shard of this step goes on and that of the next step comes, while this step computes.
  void move_inputs(Step& step, int rank, int t) const {
    const int leaving = reach_.owner_at(rank, t), coming = reach_.owner_at(rank, t + 1);
    for (const Tensor tensor : travellers_.inputs) {
      if (t < reach_.last(leaving)) {
        step.sends.push_back(transfer(tensor, leaving, Channel::activations, next(rank), input_slot(t), t));
      }
      if (t + 1 <= reach_.last(coming)) {
        step.receives.push_back(
            transfer(tensor, coming, Channel::activations, previous(rank), input_slot(t + 1), t));
      }
    }
  }

  /// The sum of a shard's gradients exists at its hops first … last.
  bool has_sum(int owner, int hop) const {
    return reach_.first(owner) > 0 && reach_.first(owner) <= hop && hop <= reach_.last(owner);
  }

  /// What the previous step computed goes on, together with what arrived for it.
  void send_gradients(Step& step, int rank, int t) const {
    const int hop = t - 1, owner = reach_.owner_at(rank, hop);
    if (!has_sum(owner, hop)) return;
    const int peer = hop == reach_.last(owner) ? owner : next(rank);
    for (const Tensor tensor : travellers_.gradients) {
      step.sends.push_back(transfer(tensor, owner, Channel::gradients, peer, partial_slot(hop), t));
    }
  }

  void receive_gradients(Step& step, int rank, int t) const {
    const int owner = reach_.owner_at(rank, t);
    const bool passing = has_sum(owner, t) && t > reach_.first(owner);
    const bool adding = passing && reach_.needs(owner, t);  // otherwise this rank only relays
    const bool homecoming = reach_.first(rank) > 0 && t == reach_.last(rank) + 1;
    for (const Tensor tensor : travellers_.gradients) {
      if (passing) {
        Transfer receive = transfer(tensor, owner, Channel::gradients, previous(rank),
                                    adding ? landing : partial_slot(t), t);
        receive.arrival = adding ? Arrival::add : Arrival::store;
        if (adding) receive.target = partial_slot(t);
        step.receives.push_back(receive);
      }
      if (homecoming) {
        Transfer receive = transfer(tensor, rank, Channel::gradients, reach_.rank_at(rank, reach_.last(rank)),
                                    adding ? homecoming_landing : landing, t);
        receive.arrival = Arrival::add;
        step.receives.push_back(receive);
      }
    }
  }

  void compute(Step& step, int rank, int t) const {
    const int owner = reach_.owner_at(rank, t);
    if (!reach_.needs(owner, t)) return;
    Compute compute;
    const bool queries = travellers_.side == Side::query;
    compute.q_shard = queries ? owner : rank;
    compute.kv_shard = queries ? rank : owner;
    compute.q_rows = problem().whole(Tensor::q, compute.q_shard).rows;
    compute.kv_rows = problem().whole(Tensor::k, compute.kv_shard).rows;
    compute.heads = {0, problem().heads};
    (queries ? compute.q_slot : compute.kv_slot) = input_slot(t);
    if (!travellers_.gradients.empty()) {
      (queries ? compute.out_slot : compute.kv_grad_slot) = partial_slot(t);
      for (const Tensor tensor : travellers_.gradients) {
        if (t > 0) step.clears.push_back({problem().whole(tensor, owner), partial_slot(t)});
      }
    }
    step.computes.push_back(compute);
  }

  Travellers travellers_;
  Reach reach_;
  int steps_ = 0;
};

}  // namespace

Plan circulate(std::string schedule, const Problem& problem, Pass pass, Travellers travellers) {
  problem.check();
  const auto circulation = std::make_shared<const Circulation>(problem, std::move(travellers));
  Plan plan;
  plan.schedule = std::move(schedule);
  plan.pass = pass;
  plan.problem = problem;
  plan.steps = circulation->steps();
  plan.step = [circulation](int rank, int step) { return circulation->step(rank, step); };
  return plan;
}

}  // namespace annulus::plan
