#include "attention/executor/proof/read_back.hpp"

#include <algorithm>
#include <tuple>

namespace annulus::executor {

using plan::local_slot;
using plan::OnReceive;
using plan::Pass;
using plan::Tensor;
using plan::TensorSlice;

namespace {

/// What computes of the same pair of shards, in the same buffers, have in common.
auto place_of(const plan::Compute& c) {
  return std::tuple(c.q_shard, c.kv_shard, c.q_rows.begin, c.q_rows.end, c.kv_rows.begin, c.kv_rows.end,
                    c.q_slot, c.kv_slot, c.out_slot, c.kv_grad_slot);
}

/// Slices come from places in memory, what becomes of a message from the actions that follow its wait.
class ProgramReader {
 public:
  explicit ProgramReader(const Program& program)
      : program_(program),
        problem_(program.plan.problem),
        site_{program.plan, program.rank},
        contents_(site_),
        waits_(program.exchanges.size(), ProgramMessage::none),
        posted_(program.exchanges.size()),
        arrivals_(program.exchanges.size()),
        staging_users_(program.capacity.staging.size(), ProgramMessage::none) {
    for (std::size_t e = 0; e < arrivals_.size(); ++e)
      arrivals_[e].resize(program.exchanges[e].receives.size());
    const auto steps = static_cast<int>(program.steps.size());
    for (site_.step = 0; site_.step < steps; ++site_.step) find_waits();
    for (site_.step = 0; site_.step < steps; ++site_.step) find_arrivals(site_.step);
    site_.step = 0;
  }

  /// The next step.
  plan::Step step() {
    const ProgramStep& now = program_.steps[static_cast<std::size_t>(site_.step)];
    plan::Step step;
    take_waits(now);
    take_actions(now);
    for (const Cleared& clear : now.clears) {
      check_landing(clear.slice, clear.block);
      site_.check(clear.block.slot != local_slot, "clears the caller's {}", text(clear.slice));
      contents_.held(clear.slice.tensor, clear.block.slot) = clear.slice;
      step.clears.push_back({clear.slice, clear.block.slot});
    }
    take_posts(now, step);
    take_computes(now, step);
    ++site_.step;
    return step;
  }

 private:
  /// A slice of some of the batch.
  struct BatchSlice {
    TensorSlice slice;
    std::int64_t first_batch = 0, batches = 0;
  };
  /// What the program does with a receive when it has been waited for.
  struct Arrived {
    OnReceive on_receive = OnReceive::store;
    plan::Slot target = local_slot;
    bool acted = false, unpacked = false;
  };
  struct Call {
    plan::Compute compute;
    std::int64_t first_batch = 0, batches = 0;
  };

  // --- Places in memory ----------------------------------------------------------------------------------

  /// What of that which its slot holds a block is: the inverse of block_of.
  BatchSlice part_of(const StridedBlock& block) {
    const std::optional<TensorSlice>& holds = contents_.held(block.tensor, block.slot);
    site_.check(holds.has_value(), "uses {} at slot {}, which holds nothing", plan::name_of(block.tensor),
                block.slot);
    const std::int64_t width = problem_.columns(block.tensor);
    const std::int64_t head_stride = holds->rows.size() * width,
                       batch_stride = holds->heads.size() * head_stride;
    const bool fits = batch_stride > 0 && block.width == width && block.head_stride == head_stride &&
                      block.batch_stride == batch_stride && block.offset >= 0 && block.batch >= 0 &&
                      block.heads >= 0 && block.rows >= 0;
    BatchSlice part;
    if (fits) {
      part.first_batch = block.offset / batch_stride;
      part.batches = block.batch;
      const std::int64_t head = block.offset % batch_stride / head_stride,
                         row = block.offset % head_stride / width;
      part.slice = {block.tensor,
                    holds->owner,
                    {holds->rows.begin + row, holds->rows.begin + row + block.rows},
                    {holds->heads.begin + static_cast<int>(head),
                     holds->heads.begin + static_cast<int>(head + block.heads)}};
    }
    site_.check(fits && block.offset % width == 0 && part.first_batch + part.batches <= problem_.batch &&
                    part.slice.rows.end <= holds->rows.end && part.slice.heads.end <= holds->heads.end,
                "uses a block of {} at slot {} that is no slice of {}", plan::name_of(block.tensor),
                block.slot, text(*holds));
    return part;
  }

  /// The slice that a block of the whole batch is.
  TensorSlice slice_of(const StridedBlock& block) {
    const int batch = problem_.batch;
    const BatchSlice part = part_of(block);
    site_.check(part.batches == batch, "uses {} of {} batches of {}", part.batches, batch, text(part.slice));
    return part.slice;
  }

  /// The block is the compact array of the slice at the beginning of its slot, which is large enough.
  void check_landing(const TensorSlice& slice, const StridedBlock& block) const {
    site_.check(block.slot >= 0 && block == block_of(slice, slice, block.slot, problem_),
                "lands {} in a block of {} at slot {} of another shape", text(slice),
                plan::name_of(block.tensor), block.slot);
    const auto& slots = program_.capacity.slots[static_cast<std::size_t>(slice.tensor)];
    const auto slot = static_cast<std::size_t>(block.slot);
    site_.check(slot < slots.size() && block.elements() <= slots[slot],
                "lands {} in slot {}, which is too small", text(slice), block.slot);
  }

  // --- What is to come -----------------------------------------------------------------------------------

  void find_waits() {
    for (const int e : program_.steps[static_cast<std::size_t>(site_.step)].waits) {
      site_.check(e >= 0 && e < static_cast<int>(waits_.size()), "waits for exchange {} of {}", e,
                  waits_.size());
      int& wait = waits_[static_cast<std::size_t>(e)];
      site_.check(wait == ProgramMessage::none, "waits for exchange {}, for which step {} has waited", e,
                  wait);
      wait = site_.step;
    }
  }

  /// The receive that lands in `block` and of which no action has made anything yet.
  Arrived* landed(int step, const StridedBlock& block) {
    for (const int e : program_.steps[static_cast<std::size_t>(step)].waits) {
      const auto& receives = program_.exchanges[static_cast<std::size_t>(e)].receives;
      auto& arrived = arrivals_[static_cast<std::size_t>(e)];
      for (std::size_t i = 0; i < receives.size(); ++i)
        if (receives[i].block == block && !arrived[i].acted) return &arrived[i];
    }
    return nullptr;
  }

  void find_arrivals(int step) {
    const auto acts = [&](const StridedBlock& from, const StridedBlock& to, OnReceive on_receive) {
      Arrived* const arrived = landed(step, from);
      site_.check(arrived != nullptr, "adds or merges {} of slot {}, which has not just arrived",
                  plan::name_of(from.tensor), from.slot);
      *arrived = {on_receive, to.slot, true, false};
    };
    for (const Action& action : program_.steps[static_cast<std::size_t>(step)].actions) {
      if (action.kind == Action::Kind::unpack) continue;
      acts(action.from, action.to, action.kind == Action::Kind::add ? OnReceive::add : OnReceive::merge);
      if (action.kind == Action::Kind::merge) acts(action.from_lse, action.to_lse, OnReceive::merge);
    }
  }

  // --- Arrivals ------------------------------------------------------------------------------------------

  void take_waits(const ProgramStep& now) {
    for (const int e : now.waits) {
      const auto number = static_cast<std::size_t>(e);
      site_.check(posted_[number], "waits for exchange {}, which no step before has posted", e);
      for (int& user : staging_users_)
        if (user == e) user = ProgramMessage::none;
      for (std::size_t i = 0; i < arrivals_[number].size(); ++i) {
        const ProgramMessage& m = program_.exchanges[number].receives[i];
        if (arrivals_[number][i].on_receive != OnReceive::store) continue;
        if (m.block.slot == local_slot)
          check_target(m.block, m.slice);
        else
          contents_.held(m.slice.tensor, m.block.slot) = m.slice;
      }
    }
  }

  void take_actions(const ProgramStep& now) {
    std::vector<std::pair<const ProgramMessage*, Arrived*>> landed;
    for (const int e : now.waits) {
      const auto number = static_cast<std::size_t>(e);
      for (std::size_t i = 0; i < arrivals_[number].size(); ++i)
        landed.emplace_back(&program_.exchanges[number].receives[i], &arrivals_[number][i]);
    }
    const auto ready = [&](const StridedBlock& block) -> const TensorSlice& {
      const auto found = std::ranges::find_if(landed, [&](const auto& l) { return l.first->block == block; });
      site_.check(found->first->staging == ProgramMessage::none || found->second->unpacked,
                  "uses {} before it is unpacked", text(found->first->slice));
      return found->first->slice;
    };
    for (const Action& action : now.actions) {
      if (action.kind == Action::Kind::unpack) {
        const auto found = std::ranges::find_if(landed, [&](const auto& l) {
          return l.first->staging == action.staging && l.first->block == action.to &&
                 l.first->wire == action.wire && !l.second->unpacked;
        });
        site_.check(action.staging != ProgramMessage::none && found != landed.end(),
                    "unpacks staging buffer {}, in which nothing for {} of slot {} has just arrived",
                    action.staging, plan::name_of(action.to.tensor), action.to.slot);
        found->second->unpacked = true;
        continue;
      }
      check_target(action.to, ready(action.from));
      if (action.kind == Action::Kind::merge) check_target(action.to_lse, ready(action.from_lse));
    }
    for (const auto& [message, arrived] : landed)
      site_.check(message->staging == ProgramMessage::none || arrived->unpacked, "never unpacks {}",
                  text(message->slice));
  }

  /// What is written is where the slice that arrives belongs.
  void check_target(const StridedBlock& target, const TensorSlice& landed) {
    const TensorSlice slice = slice_of(target);
    site_.check(slice == landed, "puts {} where {} belongs", text(landed), text(slice));
  }

  // --- Posts ---------------------------------------------------------------------------------------------

  void take_posts(const ProgramStep& now, plan::Step& step) {
    for (const int e : now.posts) {
      site_.check(e >= 0 && e < static_cast<int>(waits_.size()), "posts exchange {} of {}", e, waits_.size());
      const auto number = static_cast<std::size_t>(e);
      site_.check(!posted_[number], "posts exchange {} twice", e);
      posted_[number] = true;
      const Exchange& exchange = program_.exchanges[number];
      const int wait = waits_[number] == ProgramMessage::none ? program_.plan.steps : waits_[number];
      for (const ProgramMessage& m : exchange.sends) {
        const TensorSlice slice = slice_of(m.block);
        site_.check(slice == m.slice, "sends {} as {}", text(slice), text(m.slice));
        occupy(m, e);
        step.sends.push_back(transfer(m, exchange, wait));
      }
      for (std::size_t i = 0; i < exchange.receives.size(); ++i) {
        const ProgramMessage& m = exchange.receives[i];
        const Arrived& arrived = arrivals_[number][i];
        if (m.block.slot == local_slot) {
          check_target(m.block, m.slice);
        } else {
          check_landing(m.slice, m.block);
          contents_.held(m.slice.tensor, m.block.slot).reset();
        }
        occupy(m, e);
        plan::Transfer& receive = step.receives.emplace_back(transfer(m, exchange, wait));
        receive.on_receive = arrived.on_receive;
        receive.target = arrived.target;
      }
    }
  }

  plan::Transfer transfer(const ProgramMessage& message, const Exchange& exchange, int wait) {
    return {.slice = message.slice,
            .wire = message.wire,
            .channel = exchange.channel,
            .peer = message.peer,
            .slot = message.block.slot,
            .post = site_.step,
            .wait = wait};
  }

  /// Bytes are those of the block as they travel; a staging buffer is large enough and nobody else's.
  void occupy(const ProgramMessage& message, int exchange) {
    const StridedBlock& block = message.block;
    const auto bytes = static_cast<std::size_t>(block.elements()) * size_of(message.wire);
    site_.check(message.bytes == bytes, "exchanges {} bytes of {}, which has {}", message.bytes,
                text(message.slice), bytes);
    const bool as_stored = block.contiguous() && message.wire == storage(block.tensor, problem_.dtype);
    site_.check(as_stored || message.staging != ProgramMessage::none, "exchanges {} without a staging buffer",
                text(message.slice));
    if (message.staging == ProgramMessage::none) return;
    const auto staging = static_cast<std::size_t>(message.staging);
    site_.check(message.staging >= 0 && staging < staging_users_.size() &&
                    bytes <= program_.capacity.staging[staging],
                "stages {} in buffer {}, which is too small", text(message.slice), message.staging);
    site_.check(staging_users_[staging] == ProgramMessage::none, "stages {} in buffer {}, which is in use",
                text(message.slice), message.staging);
    staging_users_[staging] = exchange;
  }

  // --- Computes ------------------------------------------------------------------------------------------

  void take_computes(const ProgramStep& now, plan::Step& step) {
    std::vector<Call> calls;  // of one place, in a row
    for (const LocalCall& call : now.computes) {
      const Call next = read(call);
      if (!calls.empty() && place_of(calls.front().compute) != place_of(next.compute)) {
        add_joined(calls, step);
        calls.clear();
      }
      calls.push_back(next);
    }
    if (!calls.empty()) add_joined(calls, step);
  }

  /// Calls that differ in batch and heads alone, as computes of the whole batch.
  void add_joined(const std::vector<Call>& calls, plan::Step& step) const {
    const auto heads = static_cast<std::size_t>(problem_.heads),
               batch = static_cast<std::size_t>(problem_.batch);
    std::vector<int> times(heads * batch);
    for (const Call& call : calls)
      for (int head = call.compute.heads.begin; head < call.compute.heads.end; ++head)
        for (std::int64_t b = call.first_batch; b < call.first_batch + call.batches; ++b)
          ++times[static_cast<std::size_t>(head) * batch + static_cast<std::size_t>(b)];
    plan::Compute joined = calls.front().compute;
    joined.heads = {};
    const auto finish = [&] {
      if (joined.heads.size() > 0) step.computes.push_back(joined);
    };
    for (std::size_t head = 0; head < heads; ++head) {
      const auto first = times.begin() + static_cast<std::ptrdiff_t>(head * batch);
      const auto [least, most] = std::minmax_element(first, first + static_cast<std::ptrdiff_t>(batch));
      site_.check(*most <= 1, "computes q of shard {} with k, v of shard {} twice for head {}",
                  joined.q_shard, joined.kv_shard, head);
      site_.check(*least == *most, "computes q of shard {} with k, v of shard {} for some of the batch only",
                  joined.q_shard, joined.kv_shard);
      const auto number = static_cast<int>(head);
      if (*most == 0) continue;
      if (joined.heads.end != number) {
        finish();
        joined.heads.begin = number;
      }
      joined.heads.end = number + 1;
    }
    finish();
  }

  Call read(const LocalCall& call) {
    const BatchSlice q = part_of(call.q), k = part_of(call.k);
    plan::Compute compute;
    compute.q_shard = q.slice.owner;
    compute.kv_shard = k.slice.owner;
    compute.q_rows = q.slice.rows;
    compute.kv_rows = k.slice.rows;
    compute.heads = q.slice.heads;
    compute.q_slot = call.q.slot;
    compute.kv_slot = call.k.slot;
    const int group = problem_.group();
    site_.check(
        k.slice.heads == plan::HeadRange{compute.heads.begin / group, (compute.heads.end - 1) / group + 1},
        "computes heads [{}, {}) with kv heads [{}, {})", compute.heads.begin, compute.heads.end,
        k.slice.heads.begin, k.slice.heads.end);
    const auto check = [&](const StridedBlock& block, Tensor tensor, const BatchSlice& like,
                           plan::Slot slot) {
      const BatchSlice part = part_of(block);
      TensorSlice slice = like.slice;
      slice.tensor = tensor;
      site_.check(part.slice == slice && part.first_batch == like.first_batch && part.batches == like.batches,
                  "computes with {} in the place of {}", text(part.slice), text(slice));
      site_.check(block.slot == slot, "computes with {} at slot {} and others at slot {}", text(slice),
                  block.slot, slot);
    };
    check(call.q, Tensor::q, q, call.q.slot);
    check(call.k, Tensor::k, k, call.k.slot);
    check(call.v, Tensor::v, k, call.k.slot);
    site_.check(q.first_batch == k.first_batch && q.batches == k.batches,
                "computes with other batches of q and k");
    if (program_.pass == Pass::forward) {
      compute.out_slot = call.o.slot;
      check(call.o, Tensor::o, q, call.o.slot);
      check(call.lse, Tensor::lse, q, call.o.slot);
    } else {
      compute.out_slot = call.dq.slot;
      compute.kv_grad_slot = call.dk.slot;
      check(call.lse, Tensor::lse, q, call.q.slot);
      check(call.d, Tensor::d, q, call.q.slot);
      check(call.d_o, Tensor::d_o, q, call.q.slot);
      check(call.dq, Tensor::dq, q, call.dq.slot);
      check(call.dk, Tensor::dk, k, call.dk.slot);
      check(call.dv, Tensor::dv, k, call.dk.slot);
    }
    site_.check(call.q_positions == problem_.shard(compute.q_shard).slice(compute.q_rows) &&
                    call.kv_positions == problem_.shard(compute.kv_shard).slice(compute.kv_rows),
                "masks q of shard {} with k of shard {} by other positions than theirs", compute.q_shard,
                compute.kv_shard);
    site_.check(call.first_batch == q.first_batch && call.first_head == compute.heads.begin,
                "takes heads [{}, {}) of sequence {} for head {} of sequence {}", compute.heads.begin,
                compute.heads.end, q.first_batch, call.first_head, call.first_batch);
    return {compute, q.first_batch, q.batches};
  }

  const Program& program_;
  const plan::Problem& problem_;
  Site site_;
  SlotContents contents_;
  std::vector<int> waits_;                      // [exchange]: the step that waits for it
  std::vector<bool> posted_;                    // [exchange]
  std::vector<std::vector<Arrived>> arrivals_;  // [exchange][receive]
  std::vector<int> staging_users_;  // [staging buffer]: exchange that uses it, or ProgramMessage::none
};

}  // namespace

std::vector<plan::Step> read_back(const Program& program) {
  ProgramReader reader(program);
  std::vector<plan::Step> steps;
  for (std::size_t step = 0; step < program.steps.size(); ++step) steps.push_back(reader.step());
  return steps;
}

}  // namespace annulus::executor
