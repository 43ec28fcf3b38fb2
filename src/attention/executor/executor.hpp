#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/dtype.hpp>

#include "attention/executor/blocks/block_kernels.hpp"
#include "attention/executor/buffers.hpp"
#include "attention/executor/call_masks.hpp"
#include "attention/executor/plan_activity.hpp"
#include "attention/executor/proof/program.hpp"
#include "attention/executor/proof/unwritten.hpp"
#include "attention/kernels/pairs.hpp"
#include "attention/kernels/runs_on.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/execution/stopwatch.hpp"

namespace annulus::executor {

/// Arrays of slot 0 by tensor: the caller's inputs and results. Null where a pass has none.
using LocalArrays = std::array<void*, plan::tensor_count>;

/// Runs programs. Knows no schedule: what it does in which order is in the program.
template <class Exec, class T>
class Executor {
 public:
  /// What a pass works on.
  struct PassArrays {
    const ExchangeBuffers<Exec>& buffers;
    LocalArrays local_arrays;
    MaskRule mask;
    const attention::RunsOn<Exec>& runs;
    float scale, soft_cap;  ///< of the scores
    int heads;  ///< of queries, of all: mask.block_lists are those of all heads of the sequences, or one
    std::int64_t* pairs = nullptr;     ///< BlockLists::pairs
    Strided4<T, Exec> finished = {};   ///< Attention::Forward::finished, of the sequences of the pass
    Array1<const T, Exec> sinks = {};  ///< of all heads
    OnKeys<Exec, T> on_keys = {};      ///< or none
    std::int64_t first_batch = 0;      ///< of the sequences of the pass, in the whole batch
  };

  Executor(const Exec& exec, comm::Communicator& communicator, const PassArrays& arrays,
           const Settings& settings)
      : exec_(exec), queue_(exec), communicator_(communicator), arrays_(arrays), settings_(settings) {}

  /// The local buffer of a result that holds nothing yet: the pass starts from zeros (−∞ for LSE).
  void start_from_nothing(const StridedBlock& block) { unwritten_.add(block); }

  /// What waits and local kernels take is added to `waiting` and `computing`. Without `transfers` nothing is
  /// sent, and nobody waited for.
  void run(const std::shared_ptr<const PlanText>& text, bool transfers, Stopwatch<Exec>& waiting,
           Stopwatch<Exec>& computing) {
    const Program& program = text->program();
    // Requests live here and nowhere longer: when an exception leaves this function they are given up.
    std::vector<comm::Request> requests(program.exchanges.size());
    PlanActivity watchdog(communicator_.watchdog(), text, settings_.stall_timeout);
    int in_flight = 0, number = -1;
    for (const ProgramStep& step : program.steps) {
      ++number;
      const Region region(step.names.step);
      wait(requests, step.waits, step, watchdog, number, waiting);
      watchdog.enter(number, PlanActivity::Phase::accepts);
      in_flight -= static_cast<int>(step.waits.size());
      for (const Action& action : step.actions) act(action);
      for (const Cleared& cleared : step.clears) unwritten_.add(cleared.block);
      if (!step.posts.empty()) {
        const Region post_region(step.names.post);
        for (const int e : step.posts) {
          watchdog.enter(number, PlanActivity::Phase::posts, e);
          const Exchange& exchange = program.exchanges[static_cast<std::size_t>(e)];
          if (transfers) requests[static_cast<std::size_t>(e)] = post(exchange);
          ++in_flight;
        }
      }
      if (!settings_.overlap) wait(requests, step.posts, step, watchdog, number, waiting);
      if (!step.computes.empty()) {
        watchdog.enter(number, PlanActivity::Phase::computes);
        const Region compute(step.names.compute);
        computing.begin(exec_);
        const LocalCall* before = nullptr;
        for (const LocalCall& call : step.computes) {
          const bool shown = before != nullptr && before->k == call.k;
          if (arrays_.on_keys && !shown) show_keys(program.plan.problem, call);
          before = &call;
          local(program, number, call, free_sms(in_flight));
          communicator_.progress();  // of these exchanges, and of gathers and sums of weights
        }
        computing.end(exec_);
      }
    }
    unwritten_.settle_all();
    for (const StridedBlock& block : program.unfinished)
      finish(finishing(block, of_rows(block, plan::Tensor::lse)));
  }

 private:
  /// Waits for those of the exchanges that have not been waited for.
  void wait(std::vector<comm::Request>& requests, const std::vector<int>& exchanges, const ProgramStep& step,
            PlanActivity& watchdog, int number, Stopwatch<Exec>& waiting) const {
    if (exchanges.empty()) return;
    const Region region(step.names.wait);
    waiting.begin(exec_);
    for (const int e : exchanges) {
      watchdog.enter(number, PlanActivity::Phase::waits, e);
      requests[static_cast<std::size_t>(e)].wait();
      watchdog.completed(e);
    }
    waiting.end(exec_);
  }

  void* base(const StridedBlock& block) const {
    return block.slot == plan::local_slot ? arrays_.local_arrays[static_cast<std::size_t>(block.tensor)]
                                          : arrays_.buffers.slot(block.tensor, block.slot);
  }
  float* sums(const StridedBlock& block) const { return static_cast<float*>(base(block)); }
  static DType stored(const StridedBlock& block) { return storage(block.tensor, dtype_of<T>); }

  Strided4<const T, Exec> input(const StridedBlock& b) const {
    return view4<const T, Exec>(b, static_cast<T*>(base(b)));
  }
  Strided4<float, Exec> sum(const StridedBlock& b) const { return view4<float, Exec>(b, sums(b)); }
  Strided3<float, Exec> statistic(const StridedBlock& b) const { return view3<float, Exec>(b, sums(b)); }

  /// Where the part of the caller's O that `block` is goes.
  Strided4<T, Exec> finished_part(const StridedBlock& block) const {
    const Box box(block);
    return Kokkos::subview(arrays_.finished, Kokkos::pair(box.batch, box.batch_end),
                           Kokkos::pair(box.head, box.head_end), Kokkos::pair(box.row, box.row_end),
                           Kokkos::ALL);
  }

  /// Rows of the caller's O, and what is to become of them when they are complete.
  attention::ForwardArrays<T, Exec> finishing(const StridedBlock& out, const StridedBlock& lse) const {
    attention::ForwardArrays<T, Exec> arrays{.out = sum(out), .lse = statistic(lse)};
    if (arrays_.finished.data() != nullptr) arrays.finished = finished_part(out);
    if (arrays_.sinks.data() != nullptr) {
      const Box box(out);
      arrays.sinks = Kokkos::subview(arrays_.sinks, Kokkos::pair(box.head, box.head_end));
    }
    return arrays;
  }
  /// Finishes rows outside of a kernel.
  void finish(const attention::ForwardArrays<T, Exec>& arrays) const {
    if (arrays.sinks.data() != nullptr) {
      attention::join_sinks<Exec, T>(exec_, arrays);
    } else if (arrays.finished.data() != nullptr) {
      attention::convert<Exec, T>(exec_, arrays.out, arrays.finished);
    }
  }

  void clear(const StridedBlock& block) const {
    const bool logarithm = block.tensor == plan::Tensor::lse;
    fill(exec_, block, sums(block), logarithm ? -std::numeric_limits<float>::infinity() : 0.0f);
  }

  void act(const Action& action) {
    for (const StridedBlock* block : {&action.from, &action.to, &action.from_lse, &action.to_lse})
      unwritten_.settle(*block);
    switch (action.kind) {
      case Action::Kind::unpack:
        unpack(exec_, arrays_.buffers.staging(action.staging), action.wire, action.to, base(action.to),
               stored(action.to));
        break;
      case Action::Kind::add:
        add(exec_, action.from, sums(action.from), action.to, sums(action.to));
        break;
      case Action::Kind::merge:
        attention::merge<Exec>(exec_, sum(action.from), statistic(action.from_lse), sum(action.to),
                               statistic(action.to_lse));
        break;
    }
  }

  /// Where the bytes of a message leave or land.
  void* place(const ProgramMessage& m) const {
    if (m.bytes == 0) return nullptr;
    if (m.staging != ProgramMessage::none) return arrays_.buffers.staging(m.staging);
    return static_cast<std::byte*>(base(m.block)) +
           static_cast<std::size_t>(m.block.offset) * size_of(stored(m.block));
  }

  comm::Request post(const Exchange& exchange) {
    for (const auto* messages : {&exchange.sends, &exchange.receives}) {
      for (const ProgramMessage& m : *messages) {
        if (m.bytes > 0) unwritten_.settle(m.block);
      }
    }
    std::vector<comm::Send> sends;
    std::vector<comm::Receive> receives;
    for (const ProgramMessage& m : exchange.sends) {
      if (m.staging != ProgramMessage::none) {
        pack(exec_, m.block, base(m.block), stored(m.block), arrays_.buffers.staging(m.staging), m.wire);
      }
      sends.push_back({place(m), m.bytes, m.peer});
    }
    for (const ProgramMessage& m : exchange.receives) receives.push_back({place(m), m.bytes, m.peer});
    return communicator_.exchange(queue_, sends, receives, static_cast<int>(exchange.channel));
  }

  /// A persistent kernel on all SMs would hold up exchanges that have not started yet until it ends.
  int free_sms(int exchanges) const {
    return std::max(settings_.kernel.free_sms, exchanges * communicator_.sms_of_exchange());
  }

  void local(const Program& program, int step, const LocalCall& c, int free_sms) {
    const plan::Pass pass = program.pass;
    if (settings_.synthetic_kernel) {
      settings_.synthetic_kernel(
          {pass, c.pairs, c.q.rows, c.k.rows, c.q.batch * c.q.heads, &queue_, free_sms});
      const bool something = arrays_.finished.data() != nullptr || arrays_.sinks.data() != nullptr;
      if (c.finishes && something) {  // zeros, which a training run can go on with
        unwritten_.settle(c.o);
        unwritten_.settle(c.lse);
        finish(finishing(c.o, c.lse));
      }
      return;
    }
    attention::KernelOptions options = settings_.kernel;
    options.free_sms = free_sms;
    if (pass == plan::Pass::forward) {
      options.fresh_out = take(c.o, c.lse);
    } else {
      options.fresh_dq = unwritten_.take(c.dq);
      options.fresh_dkv = take(c.dk, c.dv);
    }
    std::int64_t* const counter =
        arrays_.pairs == nullptr ? nullptr : arrays_.pairs + program.plan.round(step);
    for_each_kernel_call(arrays_.mask, arrays_.heads, c,
                         [&](const LocalCall& call) { kernel(pass, call, options, counter); });
  }

  void show_keys(const plan::Problem& problem, const LocalCall& c) const {
    arrays_.on_keys({.k = input(c.k),
                     .v = input(c.v),
                     .positions = arrays_.runs(c.kv_positions),
                     .first_batch = arrays_.first_batch + c.first_batch,
                     .first_kv_head = c.first_head / problem.group()});
  }

  /// `counter`: of its pairs; or null.
  void kernel(plan::Pass pass, const LocalCall& c, const attention::KernelOptions& options,
              std::int64_t* counter) {
    const attention::Operands<T, Exec> in{input(c.q),
                                          input(c.k),
                                          input(c.v),
                                          arrays_.runs(c.q_positions),
                                          arrays_.runs(c.kv_positions),
                                          mask_of_call(arrays_.mask, arrays_.heads, c),
                                          arrays_.scale,
                                          arrays_.soft_cap};
    if (counter != nullptr) {
      attention::count_pairs(exec_, {in.mask, in.q_positions, in.keys(), c.q.batch * c.q.heads}, counter);
    }
    if (pass == plan::Pass::forward) {
      const auto arrays = c.finishes
                              ? finishing(c.o, c.lse)
                              : attention::ForwardArrays<T, Exec>{.out = sum(c.o), .lse = statistic(c.lse)};
      attention::forward<Exec, T>(exec_, in, arrays, options);
    } else {
      attention::backward<Exec, T>(exec_, in,
                                   {.d_out = input(c.d_o),
                                    .lse = statistic(c.lse),
                                    .d = statistic(c.d),
                                    .dq = sum(c.dq),
                                    .dk = sum(c.dk),
                                    .dv = sum(c.dv)},
                                   options);
    }
  }

  /// Whether nothing has been written to either; otherwise both hold what they ought to.
  bool take(const StridedBlock& a, const StridedBlock& b) {
    const bool first = unwritten_.take(a), second = unwritten_.take(b);
    if (first && !second) clear(a);
    if (second && !first) clear(b);
    return first && second;
  }

  const Exec& exec_;
  Queue queue_;
  comm::Communicator& communicator_;
  PassArrays arrays_;
  const Settings& settings_;
  Unwritten unwritten_{[this](const StridedBlock& block) { clear(block); }};
};

}  // namespace annulus::executor
