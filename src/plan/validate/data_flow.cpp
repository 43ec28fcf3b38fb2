#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "plan/describe.hpp"
#include "plan/validate/contents.hpp"
#include "plan/validate/validation.hpp"

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

/// A transfer that a step waits for.
struct Waited {
  int message;
  const Transfer* transfer;
  bool arrived = false;  // its arrival action has run
};

/// A compute that has run.
struct Computed {
  int rank, step;
  const Compute* compute;
};

class DataFlow {
 public:
  DataFlow(const Script& script, const Matching& matching, Findings& findings)
      : script_(script),
        matching_(matching),
        findings_(findings),
        memory_(static_cast<std::size_t>(script.walked())),
        waits_(static_cast<std::size_t>(script.walked())),
        travelling_(matching.messages.size()) {
    for (auto& rank : waits_) rank.resize(static_cast<std::size_t>(script.plan.steps));
    for (int rank = 0; rank < script.walked(); ++rank) {
      for (int step = 0; step < script.plan.steps; ++step) {
        const Step& at = script.at(rank, step);
        for (std::size_t i = 0; i < at.sends.size(); ++i) {
          waits(rank, at.sends[i].wait).sends.push_back({sends(rank, step)[i], &at.sends[i]});
        }
        for (std::size_t i = 0; i < at.receives.size(); ++i) {
          waits(rank, at.receives[i].wait).receives.push_back({receives(rank, step)[i], &at.receives[i]});
        }
      }
    }
  }

  void run() {
    const auto on_step = [this](int rank, int step) { enter(rank, step); };
    if (check_progress(script_, matching_, Issue::independent, on_step, findings_)) check_homes();
  }

 private:
  struct Waits {
    std::vector<Waited> sends, receives;  // in the order in which they were posted
  };

  Pass pass() const { return script_.plan.pass; }
  Waits& waits(int rank, int step) {
    return waits_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  }
  const std::vector<int>& sends(int rank, int step) const {
    return matching_.sends[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  }
  const std::vector<int>& receives(int rank, int step) const {
    return matching_.receives[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
  }

  template <class... Args>
  void fault(const std::string& subject, fmt::format_string<Args...> text, Args&&... args) {
    findings_.add("rank {}, step {}: {}: {}", rank_, step_, subject,
                  fmt::format(text, std::forward<Args>(args)...));
  }

  /// A slot of the rank whose turn it is.
  Buffer& buffer(Tensor tensor, Slot slot) { return buffer(rank_, tensor, slot); }
  Buffer& buffer(int rank, Tensor tensor, Slot slot) {
    Buffer& found = memory_[static_cast<std::size_t>(rank)].at(tensor, slot);
    if (!found.known && slot == home &&
        (among(tensor, inputs_of(pass())) || among(tensor, sums_of(pass())))) {
      found.content = Content{script_.problem().whole(tensor, rank), {}};
    }
    found.known = true;
    return found;
  }

  /// Number under which `owner`'s tensors know a compute of a walked rank. Computes that are translations of
  /// one another are told apart by their distance from the owner, which is the same wherever the sum travels.
  ComputeId id(int number, int owner) const {
    const int periods = script_.ranks() / script_.walked();
    return std::int64_t{number} * periods + (periods - owner / script_.walked()) % periods;
  }
  std::int64_t number_of(ComputeId id) const { return id / (script_.ranks() / script_.walked()); }

  // --- One step, in the order of struct Step ---------------------------------------------------------------

  void enter(int rank, int step) {
    rank_ = rank;
    step_ = step;
    Waits& done = waits(rank, step);
    for (const Waited& sent : done.sends) release(*sent.transfer, sent.message, false);
    for (const Waited& landed : done.receives) release(*landed.transfer, landed.message, true);
    for (Waited& landed : done.receives) arrive(landed, done.receives);
    const Step& at = script_.at(rank, step);
    for (const Clear& clear : at.clears) run(clear);
    for (std::size_t i = 0; i < at.sends.size(); ++i) post_send(at.sends[i], sends(rank, step)[i]);
    for (std::size_t i = 0; i < at.receives.size(); ++i)
      post_receive(at.receives[i], receives(rank, step)[i]);
    for (const Compute& compute : at.computes) run(compute);
  }

  void release(const Transfer& transfer, int message, bool landing) {
    Buffer& slot = buffer(transfer.piece.tensor, transfer.slot);
    auto& uses = landing ? slot.landings : slot.sends;
    const auto found = std::ranges::find(uses, message, &Use::message);
    *found = uses.back();
    uses.pop_back();
  }

  void run(const Clear& clear) {
    const Tensor tensor = clear.piece.tensor;
    if (!among(tensor, sums_of(pass()))) {
      return fault(describe(clear), "{} is no sum of the {}", name_of(tensor), name_of(pass()));
    }
    Buffer& slot = buffer(tensor, clear.slot);
    if (const Use* use = slot.use_of(everything, false)) {
      return fault(describe(clear), "overwrites {} while it is {}", describe_slot(clear.slot),
                   use->describe());
    }
    slot.content = Content{clear.piece, {}};
    ++slot.version;
  }

  void post_send(const Transfer& send, int message) {
    Buffer* source = readable(send.piece, send.slot, [&] { return describe_send(send); });
    travelling_[static_cast<std::size_t>(message)] =
        source != nullptr ? source->content->sum.part(rectangle(send.piece)) : Sum{};
    buffer(send.piece.tensor, send.slot).sends.push_back({message, false, rectangle(send.piece)});
  }

  void post_receive(const Transfer& receive, int message) {
    const Tensor tensor = receive.piece.tensor;
    Buffer& landing = buffer(tensor, receive.slot);
    const bool at_home = receive.slot == home;
    const Rectangle where = at_home ? rectangle(receive.piece) : everything;
    if (at_home && (receive.arrival != Arrival::store || receive.piece.owner != rank_ ||
                    !among(tensor, sums_of(pass())))) {
      fault(describe_receive(receive), "would overwrite what the rank owns; let it land in an exchange slot");
    }
    if (const Use* use = landing.use_of(where, false)) {
      fault(describe_receive(receive), "overwrites {} while it is {}", describe_slot(receive.slot),
            use->describe());
    }
    if (!at_home) landing.content.reset();
    ++landing.version;
    landing.landings.push_back({message, true, where});
  }

  // --- Arrivals --------------------------------------------------------------------------------------------

  void arrive(Waited& landed, std::vector<Waited>& all) {
    if (landed.arrived) return;
    landed.arrived = true;
    const Transfer& receive = *landed.transfer;
    Sum sum = take(landed);
    switch (receive.arrival) {
      case Arrival::store:
        return store(receive, std::move(sum));
      case Arrival::add:
        return add(receive, std::move(sum));
      case Arrival::merge:
        break;
    }
    for (Waited& other : all) {
      if (other.arrived || !belong_together(receive, *other.transfer)) continue;
      other.arrived = true;
      Sum partner = take(other);
      if (!partner.same(sum)) {
        fault(describe_receive(receive), "o and lse hold different contributions");
      }
      check_agreement(receive.piece, receive.target, [&] { return describe_receive(receive); });
      add(receive, std::move(sum));
      add(*other.transfer, std::move(partner));
      return;
    }
    fault(describe_receive(receive), "no {} arrives with it to be merged",
          receive.piece.tensor == Tensor::o ? "lse" : "o");
  }

  /// What a message has carried, in the rows of the rank that it has come to.
  Sum take(const Waited& landed) {
    Sum sum = std::move(travelling_[static_cast<std::size_t>(landed.message)]);
    const Piece &here = landed.transfer->piece, &there = matching_.send(script_, landed.message).piece;
    if (here.rows != there.rows) sum.resize(there.rows, here.rows);
    return sum;
  }

  /// The two transfers of a merge.
  static bool belong_together(const Transfer& a, const Transfer& b) {
    return a.arrival == b.arrival && a.piece.tensor != b.piece.tensor && a.piece.owner == b.piece.owner &&
           a.piece.rows == b.piece.rows && a.piece.heads == b.piece.heads && a.slot == b.slot &&
           a.target == b.target && a.post == b.post;
  }

  void store(const Transfer& receive, Sum sum) {
    Buffer& slot = buffer(receive.piece.tensor, receive.slot);
    if (receive.slot != home) {
      slot.content = Content{receive.piece, std::move(sum)};
      ++slot.version;
    } else if (slot.content && !slot.content->sum.part(rectangle(receive.piece)).empty()) {
      fault(describe_receive(receive), "overwrites contributions that home already holds");
    } else {
      accumulate(slot, std::move(sum), [&] { return describe_receive(receive); });
    }
  }

  void add(const Transfer& receive, Sum sum) {
    const auto subject = [&] { return describe_receive(receive); };
    if (Buffer* target = writable(receive.piece, receive.target, subject))
      accumulate(*target, std::move(sum), subject);
  }

  // --- Computes --------------------------------------------------------------------------------------------

  void run(const Compute& compute) {
    const auto subject = [&] { return describe(compute); };
    for (const Tensor tensor : inputs_of(pass())) {
      readable(piece_of(compute, tensor), is_query_side(tensor) ? compute.q_slot : compute.kv_slot, subject);
    }
    const bool agree =
        pass() != Pass::forward || check_agreement(piece_of(compute, Tensor::o), compute.out_slot, subject);
    for (const Tensor tensor : sums_of(pass())) {
      const Piece piece = piece_of(compute, tensor);
      Buffer* target =
          writable(piece, is_query_side(tensor) ? compute.out_slot : compute.kv_grad_slot, subject);
      if (target == nullptr) continue;
      target->content->sum.add(Contribution{id(number(), piece.owner), rectangle(piece)});
      ++target->version;
    }
    if (pass() == Pass::forward && agree) note_agreement(compute.out_slot);  // both have got the same
    computed_.push_back({rank_, step_, &compute});
  }

  /// Of the compute that runs.
  int number() const { return static_cast<int>(computed_.size()); }

  Piece piece_of(const Compute& compute, Tensor tensor) const {
    if (is_query_side(tensor)) return {tensor, compute.q_shard, compute.q_rows, compute.heads};
    const int group = script_.problem().group();
    return {tensor,
            compute.kv_shard,
            compute.kv_rows,
            {compute.heads.begin / group, (compute.heads.end - 1) / group + 1}};
  }

  // --- Slots -----------------------------------------------------------------------------------------------

  /// The slot, when it holds all of `piece` and nothing is landing there.
  template <class Subject>
  Buffer* readable(const Piece& piece, Slot slot, const Subject& subject) {
    Buffer& found = buffer(piece.tensor, slot);
    if (found.use_of(rectangle(piece), true) != nullptr) {
      fault(subject(), "needs {} in {} while it is received into", describe(piece), describe_slot(slot));
      return nullptr;
    }
    if (!found.content) {
      fault(subject(), "needs {} in {}, which is undefined", describe(piece), describe_slot(slot));
      return nullptr;
    }
    const Content& content = *found.content;
    if (content.piece.owner != piece.owner || !rectangle(content.piece).contains(rectangle(piece))) {
      fault(subject(), "needs {} in {}, which holds {}", describe(piece), describe_slot(slot),
            describe(content.piece));
      return nullptr;
    }
    return &found;
  }

  /// The slot, when it holds all of `piece` and no transfer uses it.
  template <class Subject>
  Buffer* writable(const Piece& piece, Slot slot, const Subject& subject) {
    if (!among(piece.tensor, sums_of(pass()))) {
      fault(subject(), "{} is no sum of the {}", name_of(piece.tensor), name_of(pass()));
      return nullptr;
    }
    Buffer* found = readable(piece, slot, subject);
    if (found == nullptr) return nullptr;
    if (found->use_of(rectangle(piece), false) != nullptr) {
      fault(subject(), "changes {} in {} while it is sent", describe(piece), describe_slot(slot));
      return nullptr;
    }
    return found;
  }

  template <class Subject>
  void accumulate(Buffer& target, Sum sum, const Subject& subject) {
    ++target.version;
    if (const auto twice = target.content->sum.add(std::move(sum)))
      fault(subject(), "the contribution of {} is already there", describe_computed(number_of(*twice)));
  }

  /// o and lse of a slot must stem from the same computes, or merging weighs o wrongly. True when they do,
  /// everywhere in the slot.
  template <class Subject>
  bool check_agreement(const Piece& piece, Slot slot, const Subject& subject) {
    const Buffer &o = buffer(Tensor::o, slot), &lse = buffer(Tensor::lse, slot);
    if (!o.content || !lse.content) return false;  // found by whoever uses them
    if (lse.agrees == o.version && lse.agreed == lse.version) return true;
    if (o.content->sum.same(lse.content->sum)) {
      note_agreement(slot);
      return true;
    }
    const Rectangle where = rectangle(piece);
    if (!o.content->sum.part(where).same(lse.content->sum.part(where))) {
      fault(subject(), "o and lse in {} hold different contributions", describe_slot(slot));
    }
    return false;
  }

  void note_agreement(Slot slot) {
    Buffer& lse = buffer(Tensor::lse, slot);
    lse.agrees = buffer(Tensor::o, slot).version;
    lse.agreed = lse.version;
  }

  // --- The end ---------------------------------------------------------------------------------------------

  std::string describe_computed(std::int64_t number) const {
    const Computed& computed = computed_[static_cast<std::size_t>(number)];
    return fmt::format("rank {}, step {}: {}", computed.rank, computed.step, describe(*computed.compute));
  }

  void check_homes() {
    for (int number = 0; number < static_cast<int>(computed_.size()); ++number) {
      for (const Tensor tensor : sums_of(pass())) {
        const Piece piece = piece_of(*computed_[static_cast<std::size_t>(number)].compute, tensor);
        // Its owner's home is that of a walked rank.
        const Piece here = script_.translation.piece(piece, -script_.distance(piece.owner));
        const Contribution contribution{id(number, piece.owner), rectangle(here)};
        const std::int64_t held = buffer(here.owner, tensor, home).content->sum.held(contribution);
        const std::int64_t all = contribution.where.area();
        if (held == all) continue;
        findings_.add("{}[{}] at home lacks the contribution of {} ({} of {} rows x heads have come)",
                      name_of(tensor), piece.owner, describe_computed(number), held, all);
      }
    }
  }

  const Script& script_;
  const Matching& matching_;
  Findings& findings_;
  std::vector<Memory> memory_;             // [rank]
  std::vector<std::vector<Waits>> waits_;  // [rank][step]
  std::vector<Sum> travelling_;            // [message]: what it carries
  std::vector<Computed> computed_;
  int rank_ = 0, step_ = 0;
};

}  // namespace

void check_data_flow(const Script& script, const Matching& matching, Findings& findings) {
  DataFlow(script, matching, findings).run();
}

}  // namespace annulus::plan::validation
