#include "bench/attention/measure/measure.hpp"

#include <algorithm>

#include "attention/comm/watchdog.hpp"
#include "bench/attention/measure/run.hpp"
#include "training/dump/recorder.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::bench {

using plan::Pass;

namespace {

/// Sets the attributes that tell what a tensor dump was computed with (docs/formats/tensor-dump.md).
void describe_dump(io::FileWriter& file, const BenchCase& c, double scale, const Machinery& on) {
  const AttentionOptions& options = c.options;
  const plan::Problem& problem = c.problem;
  file.set_attribute("program", "annulus-bench attention");
  file.set_attribute("device", on.execution_space);
  file.set_attribute("schedule", options.schedule);
  file.set_attribute("layout", problem.layout.to_string());
  file.set_attribute("mask", problem.mask.to_string());
  if (c.sparsity) file.set_attribute("sparsity", c.sparsity->to_string());
  file.set_attribute("dtype", options.dtype);
  file.set_attribute("kernel", on.kernel);
  file.set_attribute("ranks", problem.ranks());
  file.set_attribute("tokens", problem.mask.tokens());
  file.set_attribute("heads", problem.heads);
  file.set_attribute("kv_heads", problem.kv_heads);
  file.set_attribute("head_dim", problem.head_dim);
  file.set_attribute("v_head_dim", problem.columns(plan::Tensor::v));
  file.set_attribute("batch", problem.batch);
  file.set_attribute("seed", options.seed);
  file.set_attribute("scale", scale);
}

template <class T>
std::optional<CheckResult> check(const BenchCase& c, comm::Communicator& communicator, CaseRun<T>& run) {
  const AttentionOptions& o = c.options;
  if (!o.dump.empty()) {
    dump::record(
        o.dump, communicator, {c.problem.batch, c.problem.mask.tokens()},
        [&](io::FileWriter& file) { describe_dump(file, c, run.scale(), machinery_of(c, communicator)); },
        [&](dump::Recorder& recorder) { run.record(recorder); });
  }
  if (o.check == "none") return std::nullopt;
  const bool every_row = o.check == "reference" || (o.check == "automatic" && is_quickly_checked(c.problem));
  // It is slow, and its ranks may have unequal shares: a set timeout becomes an hour at least.
  const comm::Watchdog::Timeout timeout = std::chrono::seconds(o.stall_timeout);
  const comm::Watchdog::ActivityScope activity(
      communicator.watchdog(), "the check in double precision",
      timeout.count() == 0 ? timeout : std::max<comm::Watchdog::Timeout>(timeout, std::chrono::hours(1)));
  const std::unique_ptr<const sparsity::HostPairs> pairs = run.selected_pairs();
  CheckResult result =
      check_rows<T>(communicator, c.problem, pairs.get(), run.tensors(), every_row, o.backward);
  result.tolerance = o.tolerance.value_or(result.tolerance);
  return result;
}

/// The slowest rank's time of what all ranks do at once.
template <class Action>
double time_together(comm::Communicator& communicator, double& mine, const Action& action) {
  communicator.barrier();
  const Kokkos::Timer timer;
  action();
  mine = timer.seconds();
  return communicator.all_reduce_value(mine, comm::ReduceOp::max);
}

template <class T>
void time_passes(const BenchCase& c, comm::Communicator& communicator, CaseRun<T>& run, CaseReport& report,
                 RankRecord& record) {
  std::array<RepeatedTimes, 2> mine, waiting;
  std::array<double, 2> all{}, waited{}, computed{};
  const std::vector<Pass> passes = passes_of(c.options);
  for (const Pass pass : passes) {
    if (c.options.warm_up > 0) run.run_kernel(pass);
  }
  for (int r = 0; r < c.options.repetitions; ++r) {
    for (const Pass pass : passes) {
      const std::size_t p = index_of(pass);
      double seconds = 0;
      report.passes[p].kernel_seconds.add(
          time_together(communicator, seconds, [&] { run.run_kernel(pass); }));
      const double before = run.waited(), computed_before = run.computed();
      report.passes[p].seconds.add(time_together(communicator, seconds, [&] { run.run(pass); }));
      mine[p].add(seconds);
      waiting[p].add(run.waited() - before);
      all[p] += seconds;
      waited[p] += run.waited() - before;
      computed[p] += run.computed() - computed_before;
    }
  }
  for (const Pass pass : passes) {
    const std::size_t p = index_of(pass);
    PassRecord& rank = record.passes[p];
    rank.least_seconds = mine[p].least();
    rank.median_seconds = mine[p].median();
    rank.most_seconds = mine[p].most();
    rank.exposed_communication_seconds = waiting[p].median();
    rank.exposed_communication_share = waited[p] / all[p];
    if (waited[p] + computed[p] > 0) rank.computation_ratio = computed[p] / (waited[p] + computed[p]);
    rank.kernel_pairs = run.kernel_pairs();
  }
  run.describe(c, report, record);
}

/// Runs the passes without their transfers: their times are added up in `report`.
template <class T>
void time_computes(const BenchCase& c, comm::Communicator& communicator, CaseRun<T>& run,
                   CaseReport& report) {
  run.set_transfers(false);
  for (int r = -c.options.warm_up; r < c.options.repetitions; ++r) {
    for (const Pass pass : passes_of(c.options)) {
      double mine = 0;
      const double seconds = time_together(communicator, mine, [&] { run.run(pass); });
      if (r >= 0) report.passes[index_of(pass)].compute_seconds.add(seconds);
    }
  }
  run.set_transfers(true);
}

void add_traffic(const plan::Plan& plan, int rank, PassRecord& record) {
  const plan::Traffic traffic = plan::traffic(plan, rank);
  record.sent_bytes = traffic.sent_bytes;
  record.received_bytes = traffic.received_bytes;
  record.sent_bytes_inter_node = traffic.sent_bytes_inter_node;
  record.pairs = traffic.pairs * plan.problem.batch;
}

template <class T>
CaseReport measure_as(const BenchCase& c, comm::Communicator& communicator, const PredictionSource& machine) {
  const typename CaseRun<T>::Exec exec;
  CaseReport report{.of = c, .on = machinery_of(c, communicator)};
  CaseRun<T> run(exec, communicator, c);
  const bool looked_at = c.options.check != "none" || !c.options.dump.empty();
  for (int i = 0; i < c.options.warm_up || (i == 0 && looked_at); ++i) {
    for (const Pass pass : passes_of(c.options)) run.run(pass);
    if (i == 0) report.check = check(c, communicator, run);
  }
  RankRecord mine;
  reset_memory_peaks();
  time_passes(c, communicator, run, report, mine);
  if (c.options.compute_only) time_computes(c, communicator, run, report);
  const std::array<std::int64_t, 2> sparse_pairs = {mine.passes[0].pairs, mine.passes[1].pairs};
  add_traffic(c.forward, communicator.rank(), mine.passes[index_of(Pass::forward)]);
  add_traffic(c.backward, communicator.rank(), mine.passes[index_of(Pass::backward)]);
  for (std::size_t p = 0; c.sparsity && p < sparse_pairs.size(); ++p) mine.passes[p].pairs = sparse_pairs[p];
  mine.peak_bytes = memory_use().peak;
  mine.peak_device_bytes = memory_use(MemoryKind::device).peak;
  mine.peak_resident_bytes = peak_resident_bytes();
  report.ranks.resize(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(Queue(HostExec()), &mine, report.ranks.data(), sizeof mine);
  if (communicator.rank() == 0) {
    predict(report, machine);
    report.theoretical_speedup = theoretical_maximum_speedup(c.problem);
  }
  return report;
}

attention::Kernel asked_kernel(const BenchCase& c) {
  return attention::parse_kernel(c.options.kernel, "--kernel");
}

attention::Kernel kernel_of(const BenchCase& c) {
  return with_type(c.problem.dtype, [&]<class T>(T) {
    return attention::kernel_for<typename CaseRun<T>::Exec, T>(c.options.head_dim, asked_kernel(c), {},
                                                               static_cast<float>(c.options.soft_cap),
                                                               c.problem.v_head_dim);
  });
}

}  // namespace

Machinery machinery_of(const BenchCase& c, const comm::Communicator& communicator) {
  using Exec = Kokkos::DefaultExecutionSpace;
  return {.communicator = communicator.description(),
          .execution_space = Exec::name(),
          .kernel = c.options.spin.empty() ? std::string(name_of(kernel_of(c))) : "spin",
          .threads = Exec().concurrency()};
}

std::string kernel_warning(const BenchCase& c) {
  if (!c.options.spin.empty()) return {};
  return with_type(c.problem.dtype, [&]<class T>(T) {
    return attention::slow_kernel_warning<typename CaseRun<T>::Exec, T>(
        c.options.head_dim, asked_kernel(c), static_cast<float>(c.options.soft_cap), c.problem.v_head_dim);
  });
}

CaseReport measure(const BenchCase& c, comm::Communicator& communicator, const PredictionSource& machine) {
  return with_type(c.problem.dtype, [&]<class T>(T) { return measure_as<T>(c, communicator, machine); });
}

}  // namespace annulus::bench
