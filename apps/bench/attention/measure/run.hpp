#pragma once

#include <Kokkos_Core.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/sparsity/attention.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "attention/kernels/mask_on.hpp"
#include "attention/sparsity/host_pairs.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "bench/attention/cases/case.hpp"
#include "bench/attention/local/passes.hpp"
#include "bench/attention/measure/report.hpp"
#include "prediction/emulator/spin.hpp"
#include "training/dump/recorder.hpp"

namespace annulus::bench {

/// Inputs and results of one rank, and the attention between them.
template <class T>
class CaseRun {
 public:
  using Exec = Kokkos::DefaultExecutionSpace;

  CaseRun(const Exec& exec, comm::Communicator& communicator, const BenchCase& c)
      : exec_(exec),
        communicator_(communicator),
        problem_(c.problem),
        has_backward_(c.options.backward),
        kernel_(attention::parse_kernel(c.options.kernel, "--kernel")),
        synthetic_kernel_(synthetic_kernel(c.options, c.problem)),
        source_(inputs_of(c, communicator.rank())),
        rows_(source_.positions.count),
        mask_(exec, problem_.mask),
        inputs_{
            input(Tensor::q),
            input(Tensor::k),
            input(Tensor::v),
            has_backward_ ? input(Tensor::d_o) : Owned<Array4<T, Exec>>(),
            static_cast<float>(c.options.soft_cap),
            c.options.sinks ? make_sinks<Exec, T>(exec, problem_, c.options.seed) : Owned<Array1<T, Exec>>()},
        results_(exec, problem_, rows_, has_backward_, c.options.sinks),
        attention_(exec, communicator, c.forward, c.backward, settings(c)) {
    if (c.sparsity) sparse_.emplace(communicator, attention_, problem_, *c.sparsity, kernel_);
  }

  float scale() const { return scale_of(problem_); }

  void run(plan::Pass pass) {
    if (pass == plan::Pass::forward) {
      const typename Attention::Forward arrays{.q = *inputs_.q,
                                               .k = *inputs_.k,
                                               .v = *inputs_.v,
                                               .scale = scale(),
                                               .soft_cap = inputs_.soft_cap,
                                               .out = *results_.out,
                                               .lse = *results_.lse,
                                               .sinks = *inputs_.sinks};
      if (sparse_) {
        select();
        sparse_->forward(exec_, arrays, *selection_);
      } else {
        attention_.forward(exec_, arrays);
      }
    } else {
      attention::row_dot<Exec, T>(exec_, *results_.out, *inputs_.d_out, *results_.d);
      const typename Attention::Backward arrays{.q = *inputs_.q,
                                                .k = *inputs_.k,
                                                .v = *inputs_.v,
                                                .scale = scale(),
                                                .soft_cap = inputs_.soft_cap,
                                                .lse = *results_.lse,
                                                .d = *results_.d,
                                                .d_out = *inputs_.d_out,
                                                .dq = *results_.dq,
                                                .dk = *results_.dk,
                                                .dv = *results_.dv,
                                                .sinks = *inputs_.sinks,
                                                .d_sinks = *results_.d_sinks};
      if (results_.d_sinks.allocated()) Kokkos::deep_copy(exec_, *results_.d_sinks, 0.0f);
      if (sparse_) {
        sparse_->backward(exec_, arrays, *selection_);
      } else {
        attention_.backward(exec_, arrays);
      }
    }
    exec_.fence("annulus::bench: a pass is done");
  }

  /// The pairs of the last forward pass; null without --sparsity.
  std::unique_ptr<const sparsity::HostPairs> selected_pairs() {
    return sparse_ ? std::make_unique<const sparsity::HostPairs>(exec_, *selection_) : nullptr;
  }

  /// Describes what was selected with --sparsity, that all ranks computed exactly that, and how evenly.
  /// Collective.
  void describe(const BenchCase& c, CaseReport& report, RankRecord& record) {
    if (!sparse_) return;
    const sparsity::SelectedPairs all = sparse_->check_pairs(exec_);
    for (std::size_t p = 0; p < record.passes.size(); ++p) {
      const sparsity::SelectedPairs::OfPass& of = p == 0 ? all.forward : all.backward;
      if (of.passes > 0) record.passes[p].pairs = of.own / of.passes;
      report.passes[p].imbalance = {of.imbalance.workers, of.imbalance.steps};
    }
    const PositionMap whole = Layout().shard(problem_.mask.tokens(), 1, 0);
    SparsityReport made{.pairs = all.forward.selected / all.forward.passes,
                        .all_pairs = problem_.mask.pairs(whole, whole) * problem_.heads * problem_.batch,
                        .columns = selection_->most_columns(),
                        .bytes = static_cast<std::int64_t>(selection_->bytes()),
                        .blocks = communicator_.rank() == 0
                                      ? std::make_shared<sparsity::HostPairs>(exec_, *selection_)
                                      : nullptr,
                        .column_bytes = column_bytes(c)};
    const std::size_t timed = report.passes[0].seconds.ascending().size();  // the last ones
    for (std::size_t i = selection_seconds_.size() - timed; i < selection_seconds_.size(); ++i)
      made.selection_seconds.add(communicator_.all_reduce_value(selection_seconds_[i], comm::ReduceOp::max));
    report.sparsity = made;
  }

  /// Bytes of columns that this rank sends in the passes of the case.
  std::int64_t column_bytes(const BenchCase& c) const {
    const std::int64_t columns = selection_->all_lists() * selection_->most_columns();
    return plan::column_traffic(c.forward, columns) +
           (has_backward_ ? plan::column_traffic(c.backward, columns) : 0);
  }

  /// Seconds that this rank has waited for transfers since it was made.
  double waited() const { return attention_.times().exposed_communication; }
  /// Seconds in local kernels of the plans' steps, likewise.
  double computed() const { return attention_.times().computing; }

  /// false: passes leave their transfers out from now on, and their results have no meaning.
  void set_transfers(bool transfers) { attention_.set_transfers(transfers); }

  /// The local kernel alone, on a block of the size of this rank's shard: as many rows from the start of the
  /// sequence on, under the same mask. The values do not matter; it writes to the results of the pass, which
  /// is to be run behind it.
  void run_kernel(plan::Pass pass) {
    const PositionMap block = kernel_block();
    if (block.empty()) return;
    if (synthetic_kernel_) {
      const Queue queue(exec_);
      const std::int64_t heads = std::int64_t{problem_.heads} * problem_.batch;
      synthetic_kernel_({pass, kernel_pairs(), rows_, rows_, heads, &queue});
      return exec_.fence("annulus::bench: the synthetic kernel is done");
    }
    const auto in = inputs_.operands(block, block, mask_.rule(), scale());
    if (pass == plan::Pass::forward) {
      run_local_forward<Exec, T>(exec_, in, inputs_, results_, kernel_);
    } else {
      run_local_backward<Exec, T>(exec_, in, inputs_, results_, kernel_);
    }
  }
  /// (query, key, head) triples that run_kernel computes.
  std::int64_t kernel_pairs() const {
    const PositionMap block = kernel_block();
    return problem_.mask.pairs(block, block) * problem_.heads * problem_.batch;
  }

  /// Inputs and results by the names of plan::name_of, except that o is "out"; collective.
  void record(dump::Recorder& recorder) {
    recorder.set_rows({.count = problem_.batch}, source_.positions);
    recorder.rows(exec_, "q", *inputs_.q);
    recorder.rows(exec_, "k", *inputs_.k);
    recorder.rows(exec_, "v", *inputs_.v);
    recorder.rows(exec_, "out", *results_.out);
    recorder.rows(exec_, "lse", *results_.lse);
    if (sparse_) {
      sparsity::record_selection(
          exec_, *selection_, source_.positions,
          [&](const char* name, const auto& flags) { recorder.rows(HostExec(), name, flags); });
      if (problem_.mask.tokens() <= most_tokens_of_pairs) recorder.rows(HostExec(), "allowed", allowed());
    }
    if (!has_backward_) return;
    recorder.rows(exec_, "do", *inputs_.d_out);
    recorder.rows(exec_, "dq", *results_.dq);
    recorder.rows(exec_, "dk", *results_.dk);
    recorder.rows(exec_, "dv", *results_.dv);
  }

  /// Inputs and results on the host.
  HostTensors<T> tensors() const { return inputs_.on_host(source_.positions, results_); }

 private:
  using Attention = executor::Attention<Exec, T>;
  using Tensor = plan::Tensor;

  static std::function<void(const executor::LocalWork&)> synthetic_kernel(const AttentionOptions& o,
                                                                          const plan::Problem& problem) {
    if (o.spin.empty()) return {};
    emulator::Spin spin = emulator::parse_spin(o.spin, "--spin");
    spin.free_sms = o.spin_free;
    return emulator::spinning_kernel(spin, problem);
  }

  executor::Settings settings(const BenchCase& c) const {
    executor::Settings settings;
    settings.synthetic_kernel = synthetic_kernel_;
    settings.kernel = attention::parse_kernel(c.options.kernel, "--kernel");
    settings.overlap = c.options.overlap;
    settings.stall_timeout = std::chrono::seconds(c.options.stall_timeout);
    return settings;
  }

  void select() {
    const Kokkos::Timer timer;
    selection_ = sparse_->select(exec_, *inputs_.q, *inputs_.k, scale());
    exec_.fence("annulus::bench: the selection is timed");
    selection_seconds_.push_back(timer.seconds());
  }

  /// 1 where a pair is selected: (batch, heads, rows, tokens).
  Array4<std::uint8_t, HostExec> allowed() const {
    const sparsity::HostPairs pairs(exec_, *selection_);
    const Array4<std::uint8_t, HostExec> all("annulus::bench::allowed", problem_.batch, problem_.heads, rows_,
                                             problem_.mask.tokens());
    for (int b = 0; b < problem_.batch; ++b)
      for (int head = 0; head < problem_.heads; ++head)
        for (std::int64_t row = 0; row < rows_; ++row)
          pairs.for_keys(std::int64_t{b} * problem_.heads + head, source_.positions(row),
                         [&](std::int64_t key) { all(b, head, row, key) = 1; });
    return all;
  }

  PositionMap kernel_block() const { return Layout().shard(rows_, 1, 0); }

  Owned<Array4<T, Exec>> input(Tensor tensor) const {
    if (synthetic_kernel_) {  // which reads no values: making them takes the host longer than all else
      const int heads = plan::is_query_side(tensor) ? problem_.heads : problem_.kv_heads;
      return Owned<Array4<T, Exec>>::zeroed(exec_, MemoryCategory::activations,
                                            "annulus::bench::" + std::string(plan::name_of(tensor)),
                                            problem_.batch, heads, rows_, problem_.columns(tensor));
    }
    return make_input<Exec, T>(exec_, problem_, tensor, source_);
  }

  Exec exec_;
  comm::Communicator& communicator_;
  const plan::Problem& problem_;
  bool has_backward_;
  attention::Kernel kernel_;
  std::function<void(const executor::LocalWork&)> synthetic_kernel_;  // of --spin; else empty
  InputSource source_;
  std::int64_t rows_;
  attention::MaskOn<Exec> mask_;
  LocalInputs<Exec, T> inputs_;
  LocalResults<Exec> results_;
  Attention attention_;
  std::optional<sparsity::SparseAttention<Exec, T>> sparse_;
  std::shared_ptr<const sparsity::Selection<Exec>> selection_;  // of the last forward pass
  std::vector<double> selection_seconds_;
};

}  // namespace annulus::bench
