#include <fmt/format.h>

#include "bench/attention/measure/rates.hpp"
#include "bench/attention/measure/report.hpp"

namespace annulus::bench {

using plan::Pass;

namespace {

std::string pass_rows(const Report& report, Pass pass) {
  constexpr double mib = 1024.0 * 1024.0;
  const auto communication = static_cast<std::size_t>(MemoryCategory::communication);
  const plan::Problem& p = report.of.problem;
  const PassReport& all = report.passes[index_of(pass)];
  std::string text;
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const PassRecord& r = report.ranks[i].passes[index_of(pass)];
    const RankRecord::Peaks& exchanged =
        has_device ? report.ranks[i].peak_device_bytes : report.ranks[i].peak_bytes;
    text += fmt::format(
        "{:>5} {:>8} {:>32} {:>9.2f} {:>7.1f}% {:>12.3f} {:>14.3f} {:>12.3f}\n", i, plan::name_of(pass),
        fmt::format("{:.2f} / {:.2f} / {:.2f}", 1e3 * r.least_seconds, 1e3 * r.median_seconds,
                    1e3 * r.most_seconds),
        over(flops(p, pass, r.pairs) * 1e-9, r.median_seconds), 100 * r.exposed_communication_share,
        static_cast<double>(r.sent_bytes) / mib, 1e-6 * static_cast<double>(r.pairs),
        static_cast<double>(exchanged[communication]) / mib);
  }
  const Rates rates = rates_of(report, pass);
  text += fmt::format("{:>5} {:>8} {:>32} {:>9.2f}   pairs of the busiest rank: {:.3f} of the mean\n", "all",
                      plan::name_of(pass),
                      fmt::format("{:.2f} / {:.2f} / {:.2f}", 1e3 * all.seconds.least(),
                                  1e3 * all.seconds.median(), 1e3 * all.seconds.most()),
                      rates.gflops, imbalance(report, pass));
  text += fmt::format(
      "      {:.3f} of the local kernel's rate; exposed communication {:.3f} ms, {:.1f}%; imbalance degree "
      "{:.3f} of ranks, {:.3f} of plan steps\n",
      over(rates.gflops_per_rank, rates.kernel_gflops_per_rank), 1e3 * rates.exposed_communication_seconds,
      100 * rates.exposed_communication_share, all.imbalance.worker, all.imbalance.step);
  if (!all.compute_seconds.empty()) {
    text += fmt::format("      without transfers {:.3f} ms: transfers cost {:.2f}% of the pass\n",
                        1e3 * all.compute_seconds.median(),
                        100 * (1 - over(all.compute_seconds.median(), all.seconds.median())));
  }
  if (all.prediction) {
    text += fmt::format("      predicted {:.3f} ms: measured / predicted {:.3f}\n",
                        1e3 * all.prediction->seconds, over(all.seconds.median(), all.prediction->seconds));
  }
  return text;
}

}  // namespace

std::string to_table(const Report& report) {
  const plan::Problem& p = report.of.problem;
  const AttentionOptions& o = report.of.options;
  std::string text = fmt::format(
      "{} {} {}, {} tokens, {} heads ({} kv), head_dim {}, batch {}, {}, {} overlap, on {} with {} {} "
      "threads each, attention kernel {}\n"
      "{:>5} {:>8} {:>32} {:>9} {:>8} {:>12} {:>14} {:>12}\n",
      report.of.asked_schedule == o.schedule ? o.schedule : o.schedule + " (chosen by auto)",
      report.of.asked_layout == o.layout ? p.layout.to_string() : p.layout.to_string() + " (chosen by auto)",
      o.mask, p.mask.tokens(), p.heads, p.kv_heads, p.head_dim, p.batch, o.dtype,
      o.overlap ? "with" : "without", p.topology.to_string(), report.on.threads, report.on.execution_space,
      report.on.kernel, "rank", "pass", "ms min / median / max", "GFLOP/s", "waiting", "MiB sent", "Mpairs",
      "exchange MiB");
  for (const Pass pass : passes_of(o)) text += pass_rows(report, pass);
  text += fmt::format("prediction: {}\n", report.prediction_source);
  text += fmt::format(
      "layout: at most {:.3f} times as fast as the contiguous ring (Striped Attention's theory)\n",
      report.theoretical_speedup);
  if (report.sparsity) {
    const SparsityReport& sparse = *report.sparsity;
    text += fmt::format(
        "sparsity {}: {:.3f}% of the pairs, at most {} columns, {:.3f} ms of selection in the forward pass, "
        "{} bytes kept, {} bytes of columns sent by each rank\n",
        report.of.sparsity->to_string(), 100 * sparse.density(), sparse.columns,
        1e3 * sparse.selection_seconds.median(), sparse.bytes, sparse.column_bytes);
  }
  if (report.check) {
    text += fmt::format("check {}: relative errors", report.check->passed() ? "passed" : "FAILED");
    for (const auto& [name, error] : report.check->errors) text += fmt::format(" {} {:.2e}", name, error);
    text += fmt::format(", tolerance {:.0e}, {} rows of a head ({})\n", report.check->tolerance,
                        report.check->rows_of_head, report.check->method);
  }
  return text;
}

}  // namespace annulus::bench
