#include "attention/executor/proof/handmade.hpp"

#include <vector>

namespace annulus::test {

using plan::Channel;
using plan::HeadRange;
using plan::local_slot;
using plan::OnReceive;
using plan::Pass;
using plan::Slot;
using plan::Step;
using plan::Tensor;
using plan::TensorSlice;
using plan::Transfer;

namespace {

class Helper {
 public:
  Helper(const plan::Problem& problem, Pass pass, RowRange rows, HeadRange heads)
      : problem_(problem),
        pass_(pass),
        rows_(rows),
        heads_(heads),
        steps_{std::vector<Step>(5), std::vector<Step>(5)} {
    // What rank 0 computes for rank 1, and the keys and values for what rank 1 computes itself.
    std::vector<Tensor> asked{Tensor::q};
    if (pass == Pass::backward) asked.insert(asked.end(), {Tensor::d_o, Tensor::lse, Tensor::d});
    for (const Tensor t : asked) message(1, 0, helped(t), 0, 1, local_slot, 1);
    for (const Tensor t : {Tensor::k, Tensor::v}) message(0, 1, problem.whole(t, 0), 0, 1, local_slot, 1);
    own(0);
    own(1);
    const HeadRange all{0, problem.heads};
    const std::int64_t last = problem.shard(1).count;
    if (pass == Pass::forward) {
      for (const Tensor t : {Tensor::o, Tensor::lse}) steps_[0][1].clears.push_back({helped(t), 1});
      compute(0, 1, rows, heads, {.q = 1, .kv = local_slot, .out = 1, .kv_grad = local_slot});
      // Two parts of what one slot holds, by rows: neither is contiguous when there are several heads.
      const std::int64_t middle = (rows.begin + rows.end) / 2;
      Slot landing = 1;
      for (const RowRange part : {RowRange{rows.begin, middle}, RowRange{middle, rows.end}}) {
        for (const Tensor t : {Tensor::o, Tensor::lse}) {
          message(0, 1, {t, 1, part, heads}, 2, 3, 1, landing, OnReceive::merge);
        }
        ++landing;
      }
    } else {
      for (const Tensor t : {Tensor::dk, Tensor::dv}) steps_[1][1].clears.push_back({problem.whole(t, 0), 1});
      steps_[0][1].clears.push_back({helped(Tensor::dq), 1});
      compute(0, 1, rows, heads, {.q = 1, .kv = local_slot, .out = 1, .kv_grad = local_slot});
      message(0, 1, helped(Tensor::dq), 2, 3, 1, 1 + 1, OnReceive::add);
      for (const Tensor t : {Tensor::dk, Tensor::dv})
        message(1, 0, problem.whole(t, 0), 2, 4, 1, 2, OnReceive::add);
    }
    const Slots rest{.q = local_slot, .kv = 1, .out = local_slot, .kv_grad = 1};
    compute(1, 1, {0, rows.begin}, all, rest);
    compute(1, 1, {rows.end, last}, all, rest);
    compute(1, 1, rows, {0, heads.begin}, rest);
    compute(1, 1, rows, {heads.end, problem.heads}, rest);
  }

  Step step(int rank, int step) const { return steps_[rank][static_cast<std::size_t>(step)]; }

 private:
  struct Slots {
    Slot q = local_slot, kv = local_slot, out = local_slot, kv_grad = local_slot;
  };

  TensorSlice helped(Tensor t) const { return {t, 1, rows_, heads_}; }

  /// Adds both sides of a message that lands in `to`.
  void message(int source, int target, const TensorSlice& slice, int post, int wait, Slot from, Slot to,
               OnReceive on_receive = OnReceive::store) {
    Transfer transfer;
    transfer.slice = slice;
    transfer.wire = problem_.wire(slice.tensor);
    transfer.channel = plan::is_gradient(slice.tensor) ? Channel::gradients : Channel::activations;
    transfer.post = post;
    transfer.wait = wait;
    transfer.peer = target;
    transfer.slot = from;
    steps_[source][static_cast<std::size_t>(post)].sends.push_back(transfer);
    transfer.peer = source;
    transfer.slot = to;
    transfer.on_receive = on_receive;
    steps_[target][static_cast<std::size_t>(post)].receives.push_back(transfer);
  }

  /// Query rows of rank 1 against keys of rank 0, by `rank`, in step 1.
  void compute(int rank, int q_shard, RowRange rows, HeadRange heads, const Slots& slots) {
    if (rows.empty() || heads.size() <= 0) return;
    steps_[rank][1].computes.push_back({.q_shard = q_shard,
                                        .kv_shard = 0,
                                        .q_rows = rows,
                                        .kv_rows = {0, problem_.shard(0).count},
                                        .heads = heads,
                                        .q_slot = slots.q,
                                        .kv_slot = slots.kv,
                                        .out_slot = slots.out,
                                        .kv_grad_slot = slots.kv_grad});
  }

  /// A rank's shard against itself, while the first messages travel.
  void own(int rank) {
    const RowRange rows{0, problem_.shard(rank).count};
    steps_[rank][0].computes.push_back(
        {.q_shard = rank, .kv_shard = rank, .q_rows = rows, .kv_rows = rows, .heads = {0, problem_.heads}});
  }

  plan::Problem problem_;
  Pass pass_;
  RowRange rows_;
  HeadRange heads_;
  std::vector<Step> steps_[2];
};

}  // namespace

plan::Plan make_helper(const plan::Problem& problem, Pass pass, RowRange rows, HeadRange heads) {
  const Helper helper(problem, pass, rows, heads);
  return {.schedule = "helper",
          .pass = pass,
          .problem = problem,
          .steps = 5,
          .step = [helper](int rank, int step) { return helper.step(rank, step); }};
}

}  // namespace annulus::test
