#include "distributed/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::distributed {

using plan::Arrival;
using plan::HeadRange;
using plan::home;
using plan::Pass;
using plan::Piece;
using plan::Slot;
using plan::Tensor;

bool Block::contiguous() const {
  if (elements() == 0) return true;
  const bool heads_follow = heads == 1 || head_stride == run();
  const bool batches_follow = batch == 1 || batch_stride == heads * run();
  return heads_follow && batches_follow;
}

Block block_of(const Piece& held, const Piece& part, Slot slot, int batch, int head_dim) {
  Block block;
  block.tensor = part.tensor;
  block.slot = slot;
  block.batch = batch;
  block.heads = part.heads.size();
  block.rows = part.rows.size();
  block.width = plan::is_row_statistic(part.tensor) ? 1 : head_dim;
  block.head_stride = held.rows.size() * block.width;
  block.batch_stride = held.heads.size() * block.head_stride;
  block.offset = (part.heads.begin - held.heads.begin) * block.head_stride +
                 (part.rows.begin - held.rows.begin) * block.width;
  return block;
}

void Capacity::cover(const Capacity& other) {
  for (std::size_t t = 0; t < slots.size(); ++t) {
    slots[t].resize(std::max(slots[t].size(), other.slots[t].size()));
    for (std::size_t s = 0; s < other.slots[t].size(); ++s)
      slots[t][s] = std::max(slots[t][s], other.slots[t][s]);
  }
  staging.resize(std::max(staging.size(), other.staging.size()));
  for (std::size_t i = 0; i < other.staging.size(); ++i) staging[i] = std::max(staging[i], other.staging[i]);
}

DType storage(Tensor tensor, DType activation) {
  const bool input =
      tensor == Tensor::q || tensor == Tensor::k || tensor == Tensor::v || tensor == Tensor::d_o;
  return input ? activation : DType::f32;
}

namespace {

/// Tensors that a pass sums up at home; the others at home belong to the caller and are only read.
bool is_result(Pass pass, Tensor tensor) {
  return pass == Pass::forward ? tensor == Tensor::o || tensor == Tensor::lse : plan::is_gradient(tensor);
}

std::string text(const Piece& piece) {
  return fmt::format("{} of shard {}, rows [{}, {}), heads [{}, {})", plan::name_of(piece.tensor),
                     piece.owner, piece.rows.begin, piece.rows.end, piece.heads.begin, piece.heads.end);
}

/// Walks through the steps of one rank, keeping track of what every slot holds.
class Compiler {
 public:
  Compiler(const plan::Plan& plan, int rank, const Cutting& cutting)
      : plan_(plan), problem_(plan.problem), cutting_(cutting) {
    program_.plan = plan;
    program_.pass = plan.pass;
    program_.rank = rank;
  }

  Program run() {
    for (step_ = 0; step_ < plan_.steps; ++step_) {
      const plan::Step step = plan_.step(program_.rank, step_);
      ProgramStep& now = program_.steps.emplace_back();
      complete(now);
      for (const plan::Clear& clear : step.clears) {
        check(clear.slot != home, "clears the caller's {}", text(clear.piece));
        now.clears.push_back(hold(clear.piece, clear.slot));
      }
      post(now, step);
      for (const plan::Compute& compute : step.computes) add_compute(now, compute);
      now.names = name_step(program_, now, step_, step);
    }
    return std::move(program_);
  }

 private:
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> message, Args&&... args) const {
    if (condition) return;
    fail("the {} plan of the {} pass cannot be run: rank {}, step {}: it {}", plan_.schedule,
         plan::name_of(plan_.pass), program_.rank, step_, fmt::format(message, std::forward<Args>(args)...));
  }

  // --- Slots -----------------------------------------------------------------------------------------------

  std::optional<Piece>& contents(Tensor tensor, Slot slot) {
    auto& slots = contents_[static_cast<std::size_t>(tensor)];
    if (slots.size() <= static_cast<std::size_t>(slot)) slots.resize(static_cast<std::size_t>(slot) + 1);
    return slots[static_cast<std::size_t>(slot)];
  }

  /// A range of a shard that exists.
  void check_piece(const Piece& piece) const {
    check(piece.owner >= 0 && piece.owner < problem_.ranks(), "names {}, but there are {} ranks", text(piece),
          problem_.ranks());
    const Piece whole = problem_.whole(piece.tensor, piece.owner);
    check(piece.rows.begin >= 0 && piece.rows.begin <= piece.rows.end && piece.rows.end <= whole.rows.end &&
              piece.heads.begin >= 0 && piece.heads.begin <= piece.heads.end &&
              piece.heads.end <= whole.heads.end,
          "names {}, but that shard has {} rows and {} heads", text(piece), whole.rows.end, whole.heads.end);
  }

  /// The compact array that a slot of this size holds from its beginning.
  Block landing(const Piece& piece, Slot slot) {
    check_piece(piece);
    check(slot >= 0, "uses slot {}", slot);
    auto& sizes = program_.capacity.slots[static_cast<std::size_t>(piece.tensor)];
    if (sizes.size() <= static_cast<std::size_t>(slot)) sizes.resize(static_cast<std::size_t>(slot) + 1);
    auto& size = sizes[static_cast<std::size_t>(slot)];
    const Block block = block_of(piece, piece, slot, problem_.batch, problem_.head_dim);
    size = std::max(size, block.elements());
    return block;
  }

  Block hold(const Piece& piece, Slot slot) {
    const Block block = landing(piece, slot);
    contents(piece.tensor, slot) = piece;
    return block;
  }

  /// Where a piece lies that an earlier step has put into the slot.
  Block find(const Piece& piece, Slot slot, const char* verb) {
    check_piece(piece);
    check(slot >= 0, "uses slot {}", slot);
    const std::optional<Piece> held = slot == home
                                          ? std::optional(problem_.whole(piece.tensor, program_.rank))
                                          : contents(piece.tensor, slot);
    check(held.has_value(), "{} {} at slot {}, which holds nothing", verb, text(piece), slot);
    check(held->owner == piece.owner && held->rows.begin <= piece.rows.begin &&
              piece.rows.end <= held->rows.end && held->heads.begin <= piece.heads.begin &&
              piece.heads.end <= held->heads.end,
          "{} {} at slot {}, which holds {}", verb, text(piece), slot, text(*held));
    return block_of(*held, piece, slot, problem_.batch, problem_.head_dim);
  }

  Block find_result(const Piece& piece, Slot slot, const char* verb) {
    check(slot != home || is_result(plan_.pass, piece.tensor), "{} the caller's {}", verb, text(piece));
    return find(piece, slot, verb);
  }

  // --- Transfers -------------------------------------------------------------------------------------------

  struct Landed {
    plan::Transfer transfer;
    Block block;
    int staging = Message::none;
  };

  /// Waits, and what becomes of everything that this step waits for, in the order in which it was posted.
  void complete(ProgramStep& now) {
    for (std::size_t e = 0; e < program_.exchanges.size(); ++e) {
      if (program_.exchanges[e].wait == step_) now.waits.push_back(static_cast<int>(e));
    }
    std::vector<const Landed*> half_merges;  // o without its lse, or the other way round
    for (const Landed& landed : landed_) {
      const plan::Transfer& t = landed.transfer;
      if (t.wait != step_) continue;
      if (landed.staging != Message::none) {
        Action unpack;
        unpack.kind = Action::Kind::unpack;
        unpack.to = landed.block;
        unpack.wire = t.wire;
        unpack.staging = landed.staging;
        now.actions.push_back(unpack);
      }
      if (t.arrival == Arrival::store) {
        if (t.slot != home) contents(t.piece.tensor, t.slot) = t.piece;
      } else if (t.arrival == Arrival::add) {
        Action add;
        add.kind = Action::Kind::add;
        add.from = landed.block;
        add.to = find_result(t.piece, t.target, "adds to");
        now.actions.push_back(add);
      } else {
        const auto partner = std::find_if(half_merges.begin(), half_merges.end(), [&](const Landed* other) {
          const plan::Transfer& u = other->transfer;
          return u.piece.tensor != t.piece.tensor && u.piece.owner == t.piece.owner && u.peer == t.peer &&
                 u.piece.rows == t.piece.rows && u.piece.heads == t.piece.heads;
        });
        if (partner == half_merges.end()) {
          half_merges.push_back(&landed);
        } else {
          const bool is_out = t.piece.tensor == Tensor::o;
          now.actions.push_back(merge(is_out ? landed : **partner, is_out ? **partner : landed));
          half_merges.erase(partner);
        }
      }
    }
    check(half_merges.empty(), "merges {} without the other half of (o, lse)",
          half_merges.empty() ? std::string() : text(half_merges.front()->transfer.piece));
    std::erase_if(landed_, [&](const Landed& landed) { return landed.transfer.wait == step_; });
  }

  Action merge(const Landed& out, const Landed& lse) {
    Action merge;
    merge.kind = Action::Kind::merge;
    merge.from = out.block;
    merge.from_lse = lse.block;
    merge.to = find_result(out.transfer.piece, out.transfer.target, "merges into");
    merge.to_lse = find_result(lse.transfer.piece, lse.transfer.target, "merges into");
    return merge;
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
        check(exchange.wait < plan_.steps && exchange.wait > step_,
              "waits for a transfer in step {} of {}: a wait follows its post", exchange.wait, plan_.steps);
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

  Message message(const plan::Transfer& t, const Block& block) {
    check(t.peer >= 0 && t.peer < problem_.ranks(), "exchanges {} with rank {} of {}", text(t.piece), t.peer,
          problem_.ranks());
    Message message;
    message.piece = t.piece;
    message.block = block;
    message.wire = t.wire;
    message.peer = t.peer;
    message.bytes = static_cast<std::size_t>(block.elements()) * size_of(t.wire);
    if (message.bytes > 0 &&
        (!block.contiguous() || t.wire != storage(t.piece.tensor, problem_.activation))) {
      message.staging = take_staging(message.bytes, t.wait);
    }
    return message;
  }

  Message send(const plan::Transfer& t) { return message(t, find(t.piece, t.slot, "sends")); }

  Message receive(const plan::Transfer& t) {
    if (t.arrival == Arrival::add) check(plan::is_gradient(t.piece.tensor), "adds up {}", text(t.piece));
    if (t.arrival == Arrival::merge) {
      check(t.piece.tensor == Tensor::o || t.piece.tensor == Tensor::lse, "merges {}", text(t.piece));
    }
    Landed landed{.transfer = t, .block = {}, .staging = Message::none};
    if (t.slot == home) {
      check(t.arrival == Arrival::store, "lands {} at home to add or merge it", text(t.piece));
      landed.block = find_result(t.piece, home, "overwrites");
    } else {
      landed.block = landing(t.piece, t.slot);
      contents(t.piece.tensor, t.slot).reset();
    }
    const Message received = message(t, landed.block);
    landed.staging = received.staging;
    landed_.push_back(landed);
    return received;
  }

  /// A staging buffer that is free from this step until `wait`.
  int take_staging(std::size_t bytes, int wait) {
    auto& sizes = program_.capacity.staging;
    std::size_t i = 0;
    while (i < staging_free_from_.size() && staging_free_from_[i] > step_) ++i;
    if (i == staging_free_from_.size()) {
      staging_free_from_.push_back(0);
      sizes.push_back(0);
    }
    staging_free_from_[i] = wait;
    sizes[i] = std::max(sizes[i], bytes);
    return static_cast<int>(i);
  }

  // --- Computes --------------------------------------------------------------------------------------------

  void add_compute(ProgramStep& now, const plan::Compute& compute) {
    check(compute.heads.begin >= 0 && compute.heads.begin < compute.heads.end &&
              compute.heads.end <= problem_.heads,
          "computes heads [{}, {}) of {}", compute.heads.begin, compute.heads.end, problem_.heads);
    if (compute.q_rows.empty() || compute.kv_rows.empty()) return;
    // Kernels see whole groups of query heads, or heads of one group: cut at the first and the last group
    // boundary.
    const int group = problem_.group();
    const auto up = [&](int head) { return (head + group - 1) / group * group; };
    const int first = std::min(up(compute.heads.begin), compute.heads.end);
    const int last = std::max(first, compute.heads.end / group * group);
    for (const HeadRange heads : {HeadRange{compute.heads.begin, first}, HeadRange{first, last},
                                  HeadRange{last, compute.heads.end}}) {
      if (heads.size() > 0) cut(now, local_call(compute, heads));
    }
  }

  LocalCall local_call(const plan::Compute& c, HeadRange heads) {
    const int group = problem_.group();
    const HeadRange kv_heads{heads.begin / group, (heads.end - 1) / group + 1};
    const auto query = [&](Tensor tensor) { return Piece{tensor, c.q_shard, c.q_rows, heads}; };
    const auto key = [&](Tensor tensor) { return Piece{tensor, c.kv_shard, c.kv_rows, kv_heads}; };
    LocalCall call;
    call.q = find(query(Tensor::q), c.q_slot, "computes with");
    call.k = find(key(Tensor::k), c.kv_slot, "computes with");
    call.v = find(key(Tensor::v), c.kv_slot, "computes with");
    call.q_positions = problem_.shard(c.q_shard).slice(c.q_rows);
    call.kv_positions = problem_.shard(c.kv_shard).slice(c.kv_rows);
    if (plan_.pass == Pass::forward) {
      call.o = find_result(query(Tensor::o), c.out_slot, "merges into");
      call.lse = find_result(query(Tensor::lse), c.out_slot, "merges into");
    } else {
      call.lse = find(query(Tensor::lse), c.q_slot, "computes with");
      call.d = find(query(Tensor::d), c.q_slot, "computes with");
      call.d_o = find(query(Tensor::d_o), c.q_slot, "computes with");
      call.dq = find_result(query(Tensor::dq), c.out_slot, "adds to");
      call.dk = find_result(key(Tensor::dk), c.kv_grad_slot, "adds to");
      call.dv = find_result(key(Tensor::dv), c.kv_grad_slot, "adds to");
    }
    return call;
  }

  /// Cuts a call by kv head and batch when transfers travel meanwhile and every part is worth its call.
  void cut(ProgramStep& now, const LocalCall& call) const {
    const bool travelling = std::any_of(program_.exchanges.begin(), program_.exchanges.end(),
                                        [&](const Exchange& e) { return e.wait > step_; });
    if (!travelling || cutting_.least_pairs <= 0) {
      now.computes.push_back(call);
      return;
    }
    constexpr std::int64_t tile_rows = 64;  // rows of queries that a thread takes at a time, in either kernel
    const auto over = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
    const std::int64_t group = call.q.heads / call.k.heads;
    const std::int64_t unit_pairs = group * call.q.rows * call.k.rows;
    const std::int64_t unit_tiles = group * over(call.q.rows, tile_rows);
    const std::int64_t units =
        std::max(over(cutting_.least_pairs, unit_pairs), over(2 * cutting_.threads, unit_tiles));
    const std::int64_t heads = std::min(units, call.k.heads);  // kv heads of a part
    const std::int64_t batches = units <= call.k.heads ? 1 : over(units, call.k.heads);
    for (std::int64_t b = 0; b < call.q.batch; b += batches) {
      for (std::int64_t h = 0; h < call.k.heads; h += heads) {
        LocalCall part = call;
        for (Block* block : {&part.q, &part.o, &part.lse, &part.d, &part.d_o, &part.dq}) {
          narrow(*block, b, batches, h * group, heads * group);
        }
        for (Block* block : {&part.k, &part.v, &part.dk, &part.dv}) narrow(*block, b, batches, h, heads);
        now.computes.push_back(part);
      }
    }
  }

  /// Batches [b, b + batches) and heads [h, h + heads) of a block, as far as it has them.
  static void narrow(Block& block, std::int64_t b, std::int64_t batches, std::int64_t h, std::int64_t heads) {
    block.offset += b * block.batch_stride + h * block.head_stride;
    block.batch = std::min(batches, block.batch - b);
    block.heads = std::min(heads, block.heads - h);
  }

  const plan::Plan& plan_;
  const plan::Problem& problem_;
  Cutting cutting_;
  Program program_;
  int step_ = 0;
  std::array<std::vector<std::optional<Piece>>, plan::tensor_count> contents_;
  std::vector<Landed> landed_;  // posted and not yet waited for
  std::vector<int> staging_free_from_;
};

}  // namespace

Program make_program(const plan::Plan& plan, int rank, const Cutting& cutting) {
  return Compiler(plan, rank, cutting).run();
}

void count_pairs(Program& program, const Mask& mask) {
  for (ProgramStep& step : program.steps) {
    for (LocalCall& call : step.computes) {
      call.pairs = mask.pairs(call.q_positions, call.kv_positions) * call.q.heads * call.q.batch;
    }
  }
}

}  // namespace annulus::distributed
