#include "attention/plan/validate/flow.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "attention/plan/text.hpp"
#include "attention/plan/validate/fingerprint.hpp"

namespace annulus::plan::validation {
namespace {

constexpr Rectangle everything = {{0, std::numeric_limits<std::int64_t>::max()},
                                  {0, std::numeric_limits<int>::max()}};

constexpr std::array<Tensor, 3> forward_inputs = {Tensor::q, Tensor::k, Tensor::v};
constexpr std::array<Tensor, 2> forward_sums = {Tensor::o, Tensor::lse};
constexpr std::array<Tensor, 6> backward_inputs = {Tensor::q, Tensor::d_o, Tensor::lse,
                                                   Tensor::d, Tensor::k,   Tensor::v};
constexpr std::array<Tensor, 3> backward_sums = {Tensor::dq, Tensor::dk, Tensor::dv};

std::span<const Tensor> inputs_of(Pass pass) {
  return pass == Pass::forward ? std::span<const Tensor>(forward_inputs) : backward_inputs;
}
std::span<const Tensor> sums_of(Pass pass) {
  return pass == Pass::forward ? std::span<const Tensor>(forward_sums) : backward_sums;
}
bool among(Tensor tensor, std::span<const Tensor> tensors) {
  return std::ranges::find(tensors, tensor) != tensors.end();
}

/// o and lse of a forward, which mean something only together.
bool is_half(Pass pass, Tensor tensor) {
  return pass == Pass::forward && among(tensor, forward_sums);
}
Tensor other_half(Tensor tensor) {
  return tensor == Tensor::o ? Tensor::lse : Tensor::o;
}

}  // namespace

SlotFlow::SlotFlow(const Premises& premises, int rank, Diagnostics& diagnostics)
    : premises_(premises),
      diagnostics_(diagnostics),
      rank_(rank),
      waits_(static_cast<std::size_t>(premises.steps)) {}

template <class... Args>
void SlotFlow::fault(const std::string& subject, fmt::format_string<Args...> text, Args&&... args) {
  diagnostics_.add("rank {}, step {}: {}: {}", rank_, step_, subject,
                   fmt::format(text, std::forward<Args>(args)...));
}

SlotState& SlotFlow::buffer(Tensor tensor, Slot slot) {
  SlotState& found = memory_.at(tensor, slot);
  if (!found.known && slot == local_slot &&
      (among(tensor, inputs_of(pass())) || among(tensor, sums_of(pass()))))
    found.begin(premises_.whole(tensor, rank_));
  found.known = true;
  return found;
}

// --- One step, in the order of struct Step ---------------------------------------------------------------

void SlotFlow::enter(int number, const Step& step) {
  step_ = number;
  Waits done = std::move(waits_[static_cast<std::size_t>(number)]);
  waits_[static_cast<std::size_t>(number)] = {};
  for (const PostedTransfer& sent : done.sends) release(sent, false);
  for (const PostedTransfer& landed : done.receives) release(landed, true);
  for (PostedTransfer& landed : done.receives) arrive(landed, done.receives);
  for (const Clear& clear : step.clears) run(clear);
  std::vector<PostedTransfer> halves;
  for (const Transfer& send : step.sends) {
    const PostedTransfer sent = posted(send, false);
    post_send(sent);
    if (is_half(pass(), send.slice.tensor)) halves.push_back(sent);
  }
  check_pairs(halves);
  for (const Transfer& receive : step.receives) post_receive(posted(receive, true));
  for (const Compute& compute : step.computes) run(compute);
}

void SlotFlow::release(const PostedTransfer& posted, bool landing) {
  SlotState& slot = buffer(posted.transfer.slice.tensor, posted.transfer.slot);
  auto& uses = landing ? slot.landings : slot.sends;
  const auto found = std::ranges::find(uses, posted.number, &SlotUse::transfer);
  *found = uses.back();
  uses.pop_back();
}

void SlotFlow::run(const Clear& clear) {
  const Tensor tensor = clear.slice.tensor;
  if (!among(tensor, sums_of(pass())))
    return fault(describe(clear), "{} is no sum of the {}", name_of(tensor), name_of(pass()));
  SlotState& slot = buffer(tensor, clear.slot);
  if (const SlotUse* use = slot.use_of(everything, false)) {
    return fault(describe(clear), "overwrites {} while it is {}", describe_slot(clear.slot), use->describe());
  }
  check_sent_on(slot, tensor, clear.slot, [&] { return describe(clear); });
  slot.begin(clear.slice);
}

// --- Posts -----------------------------------------------------------------------------------------------

SlotFlow::PostedTransfer SlotFlow::posted(const Transfer& transfer, bool receives) {
  PostedTransfer posted{transfer, transfers_++, 0, false};
  const Tensor tensor = transfer.slice.tensor;
  if (is_half(pass(), tensor)) posted.index = counts_[{receives, transfer.peer, transfer.channel, tensor}]++;
  return posted;
}

std::uint64_t SlotFlow::PostedTransfer::source() const {
  const TensorSlice& slice = transfer.slice;
  return fingerprint({transfer.peer, static_cast<int>(transfer.channel), index, slice.rows.begin,
                      slice.rows.end, packed(slice.heads)});
}

void SlotFlow::post_send(const PostedTransfer& posted) {
  const Transfer& send = posted.transfer;
  const auto subject = [&] { return describe_send(send); };
  const Rectangle where = rectangle(send.slice);
  SlotState* source = readable(send.slice, send.slot, subject);
  if (source != nullptr && among(send.slice.tensor, sums_of(pass()))) {
    if (source->sent_on.touches(where))
      fault(subject(), "{} has been sent on before: what it holds would count twice",
            describe_slot(send.slot));
    source->sent_on.add(where);
    source->contributed.subtract(where);
  }
  buffer(send.slice.tensor, send.slot).sends.push_back({posted.number, false, where});
  waits_[static_cast<std::size_t>(send.wait)].sends.push_back(posted);
}

void SlotFlow::post_receive(const PostedTransfer& posted) {
  const Transfer& receive = posted.transfer;
  const Tensor tensor = receive.slice.tensor;
  const auto subject = [&] { return describe_receive(receive); };
  SlotState& landing = buffer(tensor, receive.slot);
  const bool at_owner = receive.slot == local_slot;
  const Rectangle where = at_owner ? rectangle(receive.slice) : everything;
  if (at_owner && (receive.on_receive != OnReceive::store || receive.slice.owner != rank_ ||
                   !among(tensor, sums_of(pass())))) {
    fault(subject(), "would overwrite what the rank owns; let it land in an exchange slot");
  }
  if (const SlotUse* use = landing.use_of(where, false))
    fault(subject(), "overwrites {} while it is {}", describe_slot(receive.slot), use->describe());
  if (!at_owner) {
    check_sent_on(landing, tensor, receive.slot, subject);
    landing.held.reset();
    landing.contributed.clear();
  }
  landing.landings.push_back({posted.number, true, where});
  waits_[static_cast<std::size_t>(receive.wait)].receives.push_back(posted);
}

/// The receiver takes the n-th o and the n-th lse of a rank and channel for halves of the same sum.
void SlotFlow::check_pairs(const std::vector<PostedTransfer>& sends) {
  for (const PostedTransfer& sent : sends) {
    const Transfer& a = sent.transfer;
    const auto partner = std::ranges::find_if(sends, [&](const PostedTransfer& other) {
      const Transfer& b = other.transfer;
      return b.slice.tensor == other_half(a.slice.tensor) && b.slice.owner == a.slice.owner &&
             b.slice.rows == a.slice.rows && b.slice.heads == a.slice.heads && b.slot == a.slot &&
             b.peer == a.peer && b.channel == a.channel && other.index == sent.index;
    });
    if (partner == sends.end())
      fault(describe_send(a), "no {} leaves with it", name_of(other_half(a.slice.tensor)));
    else if (a.slice.tensor == Tensor::o)
      check_agreement(a.slot, [&] { return describe_send(a); });
  }
}

// --- Arrivals --------------------------------------------------------------------------------------------

void SlotFlow::arrive(PostedTransfer& landed, std::vector<PostedTransfer>& all) {
  if (landed.arrived) return;
  landed.arrived = true;
  const OnReceive on_receive = landed.transfer.on_receive;
  if (on_receive == OnReceive::store) return store(landed);
  if (on_receive == OnReceive::add) return add(landed);
  merge(landed, all);
}

void SlotFlow::store(const PostedTransfer& landed) {
  const Transfer& receive = landed.transfer;
  const bool sum = among(receive.slice.tensor, sums_of(pass()));
  SlotState& slot = buffer(receive.slice.tensor, receive.slot);
  const Rectangle where = rectangle(receive.slice);
  if (receive.slot != local_slot) {
    slot.begin(receive.slice);
  } else if (slot.contributed.touches(where)) {
    return fault(describe_receive(receive), "overwrites contributions that the local buffer already holds");
  }
  if (!sum) return;
  slot.contributed.add(where);
  slot.sent_on.subtract(where);
  slot.history += landed.source();
}

void SlotFlow::add(const PostedTransfer& landed) {
  const Transfer& receive = landed.transfer;
  contribute(receive.slice, receive.target, landed.source(), [&] { return describe_receive(receive); });
}

void SlotFlow::merge(PostedTransfer& landed, std::vector<PostedTransfer>& all) {
  const Transfer& a = landed.transfer;
  const auto partner = std::ranges::find_if(all, [&](const PostedTransfer& other) {
    const Transfer& b = other.transfer;
    return !other.arrived && b.on_receive == a.on_receive && b.slice.tensor != a.slice.tensor &&
           b.slice.owner == a.slice.owner && b.slice.rows == a.slice.rows && b.slice.heads == a.slice.heads &&
           b.peer == a.peer && b.channel == a.channel && b.slot == a.slot && b.target == a.target &&
           b.post == a.post && other.index == landed.index;
  });
  if (partner == all.end()) {
    return fault(describe_receive(a), "no {} arrives with it to be merged",
                 name_of(other_half(a.slice.tensor)));
  }
  partner->arrived = true;
  for (const PostedTransfer* half : {&std::as_const(landed), &std::as_const(*partner)}) add(*half);
}

// --- Computes --------------------------------------------------------------------------------------------

void SlotFlow::run(const Compute& compute) {
  const auto subject = [&] { return describe(compute); };
  for (const Tensor tensor : inputs_of(pass()))
    readable(slice_of(compute, tensor), is_query_side(tensor) ? compute.q_slot : compute.kv_slot, subject);
  if (pass() == Pass::forward) check_agreement(compute.out_slot, subject);
  const std::uint64_t what = splitmix64(static_cast<std::uint64_t>(++computes_));
  for (const Tensor tensor : sums_of(pass())) {
    contribute(slice_of(compute, tensor), is_query_side(tensor) ? compute.out_slot : compute.kv_grad_slot,
               what, subject);
  }
}

TensorSlice SlotFlow::slice_of(const Compute& compute, Tensor tensor) const {
  if (is_query_side(tensor)) return {tensor, compute.q_shard, compute.q_rows, compute.heads};
  const int group = premises_.problem.group();
  return {tensor,
          compute.kv_shard,
          compute.kv_rows,
          {compute.heads.begin / group, (compute.heads.end - 1) / group + 1}};
}

// --- Slots -----------------------------------------------------------------------------------------------

/// The slot, when it holds all of `slice` and nothing is landing there.
template <class Subject>
SlotState* SlotFlow::readable(const TensorSlice& slice, Slot slot, const Subject& subject) {
  SlotState& found = buffer(slice.tensor, slot);
  if (found.use_of(rectangle(slice), true) != nullptr) {
    fault(subject(), "needs {} in {} while it is received into", describe(slice), describe_slot(slot));
    return nullptr;
  }
  if (!found.held) {
    fault(subject(), "needs {} in {}, which is undefined", describe(slice), describe_slot(slot));
    return nullptr;
  }
  if (found.held->owner != slice.owner || !rectangle(*found.held).contains(rectangle(slice))) {
    fault(subject(), "needs {} in {}, which holds {}", describe(slice), describe_slot(slot),
          describe(*found.held));
    return nullptr;
  }
  return &found;
}

/// Adds to a sum, or merges into it, where nobody sends it or has sent it on.
template <class Subject>
void SlotFlow::contribute(const TensorSlice& slice, Slot slot, std::uint64_t what, const Subject& subject) {
  if (!among(slice.tensor, sums_of(pass())))
    return fault(subject(), "{} is no sum of the {}", name_of(slice.tensor), name_of(pass()));
  SlotState* target = readable(slice, slot, subject);
  if (target == nullptr) return;
  const Rectangle where = rectangle(slice);
  if (target->use_of(where, false) != nullptr)
    fault(subject(), "changes {} in {} while it is sent", describe(slice), describe_slot(slot));
  else if (target->sent_on.touches(where))
    fault(subject(), "adds to {} in {}, which has been sent on", describe(slice), describe_slot(slot));
  target->contributed.add(where);
  target->history += what;
}

/// o and lse of a slot must stem from the same computes, or merging weighs o wrongly.
template <class Subject>
void SlotFlow::check_agreement(Slot slot, const Subject& subject) {
  const SlotState &o = buffer(Tensor::o, slot), &lse = buffer(Tensor::lse, slot);
  if (!o.held || !lse.held) return;  // found by whoever uses them
  if (o.history != lse.history)
    fault(subject(), "o and lse in {} hold different contributions", describe_slot(slot));
}

/// All that has been added up in a slot has been sent on.
template <class Subject>
void SlotFlow::check_sent_on(const SlotState& slot, Tensor tensor, Slot number, const Subject& subject) {
  if (!slot.held || slot.contributed.empty()) return;
  const Rectangle& lost = slot.contributed.parts().front();
  fault(subject(), "the sum {} in {} is lost: it has not been sent on",
        describe(TensorSlice{tensor, slot.held->owner, lost.rows, lost.heads}), describe_slot(number));
}

void SlotFlow::finish() {
  const auto subject = [] { return "when all is done"; };
  for (const Tensor tensor : sums_of(pass())) {
    const auto& slots = memory_.slots(tensor);
    for (std::size_t slot = 1; slot < slots.size(); ++slot)
      check_sent_on(slots[slot], tensor, static_cast<Slot>(slot), subject);
  }
  if (pass() == Pass::forward) check_agreement(local_slot, subject);
}

}  // namespace annulus::plan::validation
