#include "attention/executor/proof/program.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <annulus/base/division.hpp>

#include "attention/plan/text.hpp"

namespace annulus::executor {

using plan::HeadRange;
using plan::local_slot;
using plan::OnReceive;
using plan::Pass;
using plan::Tensor;
using plan::TensorSlice;

namespace {

/// "k, v[2] rows 0:16 heads 0:2 from rank 1; dq[0] rows 0:16 heads 0:4 to rank 3".
std::string names_of(const Program& program, const std::vector<int>& exchanges) {
  std::string text;
  const auto add = [&](const std::vector<ProgramMessage>& messages, const char* direction) {
    std::vector<plan::TensorSlice> of_peer;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      of_peer.push_back(messages[i].slice);
      if (i + 1 < messages.size() && messages[i + 1].peer == messages[i].peer) continue;
      text += fmt::format("{}{} {} rank {}", text.empty() ? "" : "; ", plan::describe(of_peer), direction,
                          messages[i].peer);
      of_peer.clear();
    }
  };
  for (const int e : exchanges) {
    add(program.exchanges[static_cast<std::size_t>(e)].receives, "from");
    add(program.exchanges[static_cast<std::size_t>(e)].sends, "to");
  }
  return text;
}

/// Names of step `number`, which `step` is the last one of; `planned` is where it comes from.
StepNames name_step(const Program& program, const ProgramStep& step, int number, const plan::Step& planned) {
  const std::string name =
      fmt::format("{} {} step {}", program.plan.schedule, program.plan.pass_text(), number);
  const auto& computes = planned.computes;
  std::string computed = computes.empty() ? "" : plan::describe(computes.front());
  if (computes.size() > 1) computed += fmt::format(" and {} more", computes.size() - 1);
  return {name, fmt::format("{}: wait for {}", name, names_of(program, step.waits)),
          fmt::format("{}: post {}", name, names_of(program, step.posts)),
          fmt::format("{}: {}", name, computed)};
}

/// Rows of queries that a thread takes at a time, at least, in the kernels of the host.
constexpr std::int64_t tile_rows = 64;

/// Batches [b, b + batches) and heads [h, h + heads) of a block, as far as it has them.
void narrow(StridedBlock& block, std::int64_t b, std::int64_t batches, std::int64_t h, std::int64_t heads) {
  block.offset += b * block.batch_stride + h * block.head_stride;
  block.batch = std::min(batches, block.batch - b);
  block.heads = std::min(heads, block.heads - h);
}

/// The part of `call` in these sequences and kv heads.
LocalCall narrowed(const LocalCall& call, std::int64_t b, std::int64_t batches, std::int64_t h,
                   std::int64_t heads) {
  const std::int64_t group = call.q.heads / call.k.heads;
  LocalCall part = call;
  for (StridedBlock* block : {&part.q, &part.o, &part.lse, &part.d, &part.d_o, &part.dq})
    narrow(*block, b, batches, h * group, heads * group);
  for (StridedBlock* block : {&part.k, &part.v, &part.dk, &part.dv}) narrow(*block, b, batches, h, heads);
  part.first_batch += b;
  part.first_head += h * group;
  return part;
}

/// The parts of `call`, in order; the call itself when cutting is off. `pairs` is not divided.
std::vector<LocalCall> parts_of(const LocalCall& call, const Cutting& cutting) {
  if (cutting.least_pairs <= 0) return {call};
  const std::int64_t group = call.q.heads / call.k.heads;
  const std::int64_t unit_pairs = group * call.q.rows * call.k.rows;
  const std::int64_t unit_tiles = group * ceil_divide(call.q.rows, tile_rows);
  const std::int64_t units = std::max(ceil_divide(cutting.least_pairs, unit_pairs),
                                      ceil_divide(std::int64_t{2} * cutting.threads, unit_tiles));
  const std::int64_t heads = std::min(units, call.k.heads);  // kv heads of a part
  const std::int64_t batches = units <= call.k.heads ? 1 : ceil_divide(units, call.k.heads);
  std::vector<LocalCall> parts;
  for (std::int64_t b = 0; b < call.q.batch; b += batches) {
    for (std::int64_t h = 0; h < call.k.heads; h += heads)
      parts.push_back(narrowed(call, b, batches, h, heads));
  }
  return parts;
}

/// Walks through the steps of one rank, keeping track of what every slot holds.
class Compiler {
 public:
  Compiler(const plan::Plan& plan, int rank, const Cutting& cutting)
      : plan_(plan), problem_(plan.problem), cutting_(cutting), site_{plan, rank} {
    program_.plan = plan;
    program_.pass = plan.pass;
    program_.rank = rank;
  }

  Program run() {
    for (; site_.step < plan_.steps; ++site_.step) {
      const plan::Step step = plan_.step(site_.rank, site_.step);
      ProgramStep& now = program_.steps.emplace_back();
      complete(now);
      for (const plan::Clear& clear : step.clears) {
        site_.check(clear.slot != local_slot, "clears the caller's {}", text(clear.slice));
        now.clears.push_back({clear.slice, slots_.hold(clear.slice, clear.slot)});
      }
      post(now, step);
      for (const plan::Compute& compute : step.computes) add_compute(now, compute);
      now.names = name_step(program_, now, site_.step, step);
    }
    program_.capacity = slots_.capacity();
    mark_finishing(program_);
    return std::move(program_);
  }

 private:
  // --- Transfers -------------------------------------------------------------------------------------------

  struct Landed {
    plan::Transfer transfer;
    StridedBlock block;
    int staging = ProgramMessage::none;
  };

  /// Waits, and what becomes of everything that this step waits for, in the order in which it was posted.
  void complete(ProgramStep& now) {
    for (std::size_t e = 0; e < program_.exchanges.size(); ++e) {
      if (program_.exchanges[e].wait == site_.step) now.waits.push_back(static_cast<int>(e));
    }
    std::vector<const Landed*> half_merges;  // o without its lse, or the other way round
    for (const Landed& landed : landed_) {
      const plan::Transfer& t = landed.transfer;
      if (t.wait != site_.step) continue;
      if (landed.staging != ProgramMessage::none) {
        now.actions.push_back({.kind = Action::Kind::unpack,
                               .from = {},
                               .to = landed.block,
                               .from_lse = {},
                               .to_lse = {},
                               .wire = t.wire,
                               .staging = landed.staging});
      }
      if (t.on_receive == OnReceive::store) {
        if (t.slot != local_slot) slots_.hold(t.slice, t.slot);
      } else if (t.on_receive == OnReceive::add) {
        now.actions.push_back(
            {Action::Kind::add, landed.block, slots_.find_result(t.slice, t.target, "adds to"), {}, {}});
      } else {
        const auto partner = std::find_if(half_merges.begin(), half_merges.end(), [&](const Landed* other) {
          const plan::Transfer& u = other->transfer;
          return u.slice.tensor != t.slice.tensor && u.slice.owner == t.slice.owner && u.peer == t.peer &&
                 u.slice.rows == t.slice.rows && u.slice.heads == t.slice.heads;
        });
        if (partner == half_merges.end()) {
          half_merges.push_back(&landed);
        } else {
          const bool is_out = t.slice.tensor == Tensor::o;
          now.actions.push_back(merge(is_out ? landed : **partner, is_out ? **partner : landed));
          half_merges.erase(partner);
        }
      }
    }
    site_.check(half_merges.empty(), "merges {} without the other half of (o, lse)",
                half_merges.empty() ? std::string() : text(half_merges.front()->transfer.slice));
    std::erase_if(landed_, [&](const Landed& landed) { return landed.transfer.wait == site_.step; });
  }

  Action merge(const Landed& out, const Landed& lse) {
    const auto target = [&](const plan::Transfer& t) {
      return slots_.find_result(t.slice, t.target, "merges into");
    };
    return {Action::Kind::merge, out.block, target(out.transfer), lse.block, target(lse.transfer)};
  }

  void post(ProgramStep& now, const plan::Step& step) {
    for (int channel = 0; channel < plan::channel_count; ++channel) {
      std::vector<plan::Transfer> sends, receives;
      const auto here = [&](const plan::Transfer& t) { return static_cast<int>(t.channel) == channel; };
      std::copy_if(step.sends.begin(), step.sends.end(), std::back_inserter(sends), here);
      std::copy_if(step.receives.begin(), step.receives.end(), std::back_inserter(receives), here);
      // What is waited for together is posted together, without changing the order that the plan lists.
      std::size_t s = 0, r = 0;
      while (s < sends.size() || r < receives.size()) {
        Exchange exchange;
        exchange.channel = static_cast<plan::Channel>(channel);
        exchange.wait = std::min(s < sends.size() ? sends[s].wait : plan_.steps,
                                 r < receives.size() ? receives[r].wait : plan_.steps);
        site_.check(exchange.wait < plan_.steps && exchange.wait > site_.step,
                    "waits for a transfer in step {} of {}: a wait follows its post", exchange.wait,
                    plan_.steps);
        for (; s < sends.size() && sends[s].wait == exchange.wait; ++s)
          exchange.sends.push_back(send(sends[s]));
        for (; r < receives.size() && receives[r].wait == exchange.wait; ++r) {
          exchange.receives.push_back(receive(receives[r]));
        }
        now.posts.push_back(static_cast<int>(program_.exchanges.size()));
        program_.exchanges.push_back(std::move(exchange));
      }
    }
  }

  ProgramMessage message(const plan::Transfer& t, const StridedBlock& block) {
    site_.check(t.peer >= 0 && t.peer < problem_.ranks(), "exchanges {} with rank {} of {}", text(t.slice),
                t.peer, problem_.ranks());
    ProgramMessage message{.slice = t.slice,
                           .block = block,
                           .wire = t.wire,
                           .peer = t.peer,
                           .bytes = static_cast<std::size_t>(block.elements()) * size_of(t.wire)};
    if (message.bytes > 0 && (!block.contiguous() || t.wire != storage(t.slice.tensor, problem_.dtype))) {
      message.staging = slots_.take_staging(message.bytes, t.wait);
    }
    return message;
  }

  ProgramMessage send(const plan::Transfer& t) { return message(t, slots_.find(t.slice, t.slot, "sends")); }

  ProgramMessage receive(const plan::Transfer& t) {
    if (t.on_receive == OnReceive::add)
      site_.check(plan::is_gradient(t.slice.tensor), "adds up {}", text(t.slice));
    if (t.on_receive == OnReceive::merge) {
      site_.check(t.slice.tensor == Tensor::o || t.slice.tensor == Tensor::lse, "merges {}", text(t.slice));
    }
    Landed landed{.transfer = t, .block = {}, .staging = ProgramMessage::none};
    if (t.slot == local_slot) {
      site_.check(t.on_receive == OnReceive::store, "lands {} in the local buffer to add or merge it",
                  text(t.slice));
      landed.block = slots_.find_result(t.slice, local_slot, "overwrites");
    } else {
      landed.block = slots_.landing(t.slice, t.slot);
      slots_.release(t.slice.tensor, t.slot);
    }
    const ProgramMessage received = message(t, landed.block);
    landed.staging = received.staging;
    landed_.push_back(landed);
    return received;
  }

  // --- Computes --------------------------------------------------------------------------------------------

  void add_compute(ProgramStep& now, const plan::Compute& compute) {
    site_.check(compute.heads.begin >= 0 && compute.heads.begin < compute.heads.end &&
                    compute.heads.end <= problem_.heads,
                "computes heads [{}, {}) of {}", compute.heads.begin, compute.heads.end, problem_.heads);
    site_.check(
        !plan_.queries_stay || compute.q_shard == site_.rank,
        "computes with queries of rank {}, though the plan says that queries stay (Plan::queries_stay)",
        compute.q_shard);
    if (compute.q_rows.empty() || compute.kv_rows.empty()) return;
    // Kernels see whole groups of query heads, or heads of one group: cut at the first and the last group
    // boundary.
    const int group = problem_.group();
    const int first = std::min(round_up(compute.heads.begin, group), compute.heads.end);
    const int last = std::max(first, compute.heads.end / group * group);
    for (const HeadRange heads : {HeadRange{compute.heads.begin, first}, HeadRange{first, last},
                                  HeadRange{last, compute.heads.end}}) {
      if (heads.size() == 0) continue;
      const LocalCall call = local_call(compute, heads);
      if (transfers_in_flight())
        std::ranges::copy(parts_of(call, cutting_), std::back_inserter(now.computes));
      else
        now.computes.push_back(call);
    }
  }

  LocalCall local_call(const plan::Compute& c, HeadRange heads) {
    const int group = problem_.group();
    const HeadRange kv_heads{heads.begin / group, (heads.end - 1) / group + 1};
    const auto query = [&](Tensor tensor) { return TensorSlice{tensor, c.q_shard, c.q_rows, heads}; };
    const auto key = [&](Tensor tensor) { return TensorSlice{tensor, c.kv_shard, c.kv_rows, kv_heads}; };
    LocalCall call;
    call.first_head = heads.begin;
    call.q = slots_.find(query(Tensor::q), c.q_slot, "computes with");
    call.k = slots_.find(key(Tensor::k), c.kv_slot, "computes with");
    call.v = slots_.find(key(Tensor::v), c.kv_slot, "computes with");
    call.q_positions = problem_.shard(c.q_shard).slice(c.q_rows);
    call.kv_positions = problem_.shard(c.kv_shard).slice(c.kv_rows);
    if (plan_.pass == Pass::forward) {
      call.o = slots_.find_result(query(Tensor::o), c.out_slot, "merges into");
      call.lse = slots_.find_result(query(Tensor::lse), c.out_slot, "merges into");
    } else {
      call.lse = slots_.find(query(Tensor::lse), c.q_slot, "computes with");
      call.d = slots_.find(query(Tensor::d), c.q_slot, "computes with");
      call.d_o = slots_.find(query(Tensor::d_o), c.q_slot, "computes with");
      call.dq = slots_.find_result(query(Tensor::dq), c.out_slot, "adds to");
      call.dk = slots_.find_result(key(Tensor::dk), c.kv_grad_slot, "adds to");
      call.dv = slots_.find_result(key(Tensor::dv), c.kv_grad_slot, "adds to");
    }
    return call;
  }

  bool transfers_in_flight() const {
    return std::any_of(program_.exchanges.begin(), program_.exchanges.end(),
                       [&](const Exchange& exchange) { return exchange.wait > site_.step; });
  }

  const plan::Plan& plan_;
  const plan::Problem& problem_;
  Cutting cutting_;
  Program program_;
  Site site_;
  Slots slots_{site_};
  std::vector<Landed> landed_;  // posted and not yet waited for
};

}  // namespace

Program make_program(const plan::Plan& plan, int rank, const Cutting& cutting) {
  return Compiler(plan, rank, cutting).run();
}

LocalCall sequence_of(const LocalCall& call, std::int64_t batch) {
  return narrowed(call, batch, 1, 0, call.k.heads);
}

}  // namespace annulus::executor
