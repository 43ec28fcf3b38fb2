#include "bench/attention/measure/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/output/output_json.hpp"

namespace annulus::bench {

using nlohmann::json;
using plan::Pass;

namespace {

/// A fraction of what may be zero.
double over(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

/// simulator::flops of pairs that are summed over the batch already.
double flops_of(const CaseReport& report, Pass pass, std::int64_t pairs) {
  return simulator::flops(report.of.problem, pass, pairs) / report.of.problem.batch;
}

json rank_pass_json(const PassRecord& r) {
  return {{"seconds", {{"min", r.least_seconds}, {"median", r.median_seconds}, {"max", r.most_seconds}}},
          {"exposed_communication_share", r.exposed_communication_share},
          {"exposed_communication_seconds", r.exposed_communication_seconds},
          {"computation_ratio", r.computation_ratio},
          {"sent_bytes", r.sent_bytes},
          {"received_bytes", r.received_bytes},
          {"sent_bytes_inter_node", r.sent_bytes_inter_node},
          {"pairs", r.pairs}};
}

json predicted_json(const PassReport& pass) {
  if (!pass.prediction) return nullptr;
  return {{"seconds", pass.prediction->seconds},
          {"exposed_communication_seconds", pass.prediction->exposed_communication_seconds},
          {"measured_over_predicted", over(pass.seconds.median(), pass.prediction->seconds)}};
}

json pass_json(const CaseReport& report, Pass pass) {
  const PassReport& p = report.passes[index_of(pass)];
  const auto ranks = static_cast<double>(report.ranks.size());
  std::int64_t pairs = 0, most_pairs = 0, sent = 0, between_nodes = 0;
  double exposed = 0, most_exposed = 0, computation_ratio = 0;  // means of the ranks, and the most of one
  for (const RankRecord& rank : report.ranks) {
    const PassRecord& r = rank.passes[index_of(pass)];
    pairs += r.pairs;
    most_pairs = std::max(most_pairs, r.pairs);
    sent += r.sent_bytes;
    between_nodes += r.sent_bytes_inter_node;
    exposed += r.exposed_communication_seconds / ranks;
    most_exposed = std::max(most_exposed, r.exposed_communication_seconds);
    computation_ratio += r.computation_ratio / ranks;
  }
  const double seconds = p.seconds.median(), flops = flops_of(report, pass, pairs),
               gflops = over(flops * 1e-9, seconds), of_kernel = 1e-9 * kernel_rate(report, pass);
  const auto overhead = [&]() -> json {
    return p.compute_seconds.empty() ? json() : json(1 - over(p.compute_seconds.median(), seconds));
  };
  return {{"seconds", seconds},
          {"seconds_min", p.seconds.least()},
          {"seconds_max", p.seconds.most()},
          {"seconds_each", p.seconds.ascending()},
          {"flops", flops},
          {"gflops", gflops},
          {"gflops_per_rank", gflops / ranks},
          {"tflops_per_rank", 1e-3 * gflops / ranks},
          {"pairs", pairs},
          {"imbalance", pairs > 0 ? static_cast<double>(most_pairs) * ranks / static_cast<double>(pairs) : 1},
          {"computation_ratio", computation_ratio},
          {"imbalance_degree", {{"worker", p.imbalance.worker}, {"step", p.imbalance.step}}},
          {"local_kernel",
           {{"seconds", p.kernel_seconds.median()},
            {"seconds_min", p.kernel_seconds.least()},
            {"seconds_max", p.kernel_seconds.most()},
            {"gflops_per_rank", of_kernel}}},
          {"local_kernel_share", of_kernel > 0 ? json(gflops / ranks / of_kernel) : json()},
          {"sent_bytes", {{"intra_node", sent - between_nodes}, {"inter_node", between_nodes}}},
          {"exposed_communication",
           {{"seconds", exposed},
            {"seconds_max", most_exposed},
            {"share", over(exposed, seconds)},
            {"compute_only_seconds", p.compute_seconds.empty() ? json() : json(p.compute_seconds.median())},
            {"communication_overhead_share", overhead()}}},
          {"predicted", predicted_json(p)},
          {"prediction_source", report.prediction_source},
          {"striped_attention", {{"theoretical_maximum_speedup", report.theoretical_speedup}}}};
}

json peaks_json(const RankRecord::Peaks& peaks) {
  json memory;
  for (int c = 0; c < memory_category_count; ++c) {
    memory[std::string(name_of(static_cast<MemoryCategory>(c)))] = peaks[c];
  }
  return memory;
}

json rank_json(const CaseReport& report, const RankRecord& rank) {
  json memory = peaks_json(rank.peak_bytes);
  memory["resident"] = rank.peak_resident_bytes;
  if (has_device) memory["device"] = peaks_json(rank.peak_device_bytes);
  json entry = {{"peak_bytes", memory}};
  for (const Pass pass : passes_of(report.of.options))
    entry[std::string(plan::name_of(pass))] = rank_pass_json(rank.passes[index_of(pass)]);
  return entry;
}

json check_json(const std::optional<CheckResult>& check) {
  if (!check) return nullptr;
  json result = {{"passed", check->passed()},
                 {"tolerance", check->tolerance},
                 {"method", check->method},
                 {"rows_of_head", check->rows_of_head},
                 {"errors", json::object()}};
  for (const auto& [name, error] : check->errors) result["errors"][name] = error;
  return result;
}

json sparsity_json(const std::optional<SparsityReport>& sparsity) {
  if (!sparsity) return nullptr;
  return {{"pairs", sparsity->pairs},
          {"all_pairs", sparsity->all_pairs},
          {"density", sparsity->density()},
          {"columns", sparsity->columns},
          {"kept_bytes", sparsity->bytes},
          {"column_bytes", sparsity->column_bytes},
          {"selection_seconds", sparsity->selection_seconds.median()}};
}

std::string pass_rows(const CaseReport& report, Pass pass) {
  constexpr double mib = 1024.0 * 1024.0;
  const auto communication = static_cast<std::size_t>(MemoryCategory::communication);
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
        over(flops_of(report, pass, r.pairs) * 1e-9, r.median_seconds), 100 * r.exposed_communication_share,
        static_cast<double>(r.sent_bytes) / mib, 1e-6 * static_cast<double>(r.pairs),
        static_cast<double>(exchanged[communication]) / mib);
  }
  const json of_all = pass_json(report, pass);
  const auto number = [&](const char* pointer) {
    const json& value = of_all.at(json::json_pointer(pointer));
    return value.is_null() ? 0.0 : value.get<double>();
  };
  text += fmt::format("{:>5} {:>8} {:>32} {:>9.2f}   pairs of the busiest rank: {:.3f} of the mean\n", "all",
                      plan::name_of(pass),
                      fmt::format("{:.2f} / {:.2f} / {:.2f}", 1e3 * all.seconds.least(),
                                  1e3 * all.seconds.median(), 1e3 * all.seconds.most()),
                      number("/gflops"), number("/imbalance"));
  text += fmt::format(
      "      {:.3f} of the local kernel's rate; exposed communication {:.3f} ms, {:.1f}%; imbalance degree "
      "{:.3f} of ranks, {:.3f} of plan steps\n",
      number("/local_kernel_share"), 1e3 * number("/exposed_communication/seconds"),
      100 * number("/exposed_communication/share"), all.imbalance.worker, all.imbalance.step);
  if (!all.compute_seconds.empty())
    text += fmt::format("      without transfers {:.3f} ms: transfers cost {:.2f}% of the pass\n",
                        1e3 * all.compute_seconds.median(),
                        100 * number("/exposed_communication/communication_overhead_share"));
  if (all.prediction)
    text += fmt::format("      predicted {:.3f} ms: measured / predicted {:.3f}\n",
                        1e3 * all.prediction->seconds, number("/predicted/measured_over_predicted"));
  return text;
}

}  // namespace

std::vector<Pass> passes_of(const AttentionOptions& options) {
  return options.backward ? std::vector{Pass::forward, Pass::backward} : std::vector{Pass::forward};
}

double kernel_rate(const CaseReport& report, Pass pass) {
  std::int64_t pairs = 0;
  for (const RankRecord& rank : report.ranks) pairs += rank.passes[index_of(pass)].kernel_pairs;
  return over(flops_of(report, pass, pairs), report.passes[index_of(pass)].kernel_seconds.median()) /
         static_cast<double>(report.ranks.size());
}

json config_json(const BenchCase& c, const Machinery& on) {
  const AttentionOptions& o = c.options;
  const plan::Problem& problem = c.problem;
  json data = json::array();
  for (const auto& path : o.data) data.push_back(path.string());
  json config = {{"schedule", o.schedule},
                 {"layout", problem.layout.to_string()},
                 {"mask", o.mask},
                 {"effective_mask", problem.mask.to_string()},
                 {"tokens", o.tokens},
                 {"heads", o.heads},
                 {"kv_heads", problem.kv_heads},
                 {"head_dim", o.head_dim},
                 {"v_head_dim", problem.columns(plan::Tensor::v)},
                 {"batch", o.batch},
                 {"dtype", o.dtype},
                 {"kernel", o.kernel},
                 {"seed", o.seed},
                 {"inputs", o.inputs},
                 {"pass", o.backward ? "both" : "forward"},
                 {"overlap", o.overlap},
                 {"transport", o.transport.name},
                 {"max_ctas", o.transport.max_ctas},
                 {"copy_engines", !o.transport.no_copy_engines},
                 {"nvlink_multicast", o.transport.nvlink_multicast},
                 {"repetitions", o.repetitions},
                 {"warm_up", o.warm_up},
                 {"data", data},
                 {"vocabulary_embedding_seed", o.embedding_seed.value_or(o.seed)}};
  if (!o.spin.empty()) config["spin"] = {{"tflops", o.spin}, {"free_sms", o.spin_free}};
  if (o.soft_cap > 0) config["soft_cap"] = o.soft_cap;
  if (o.sinks) config["sinks"] = true;
  if (c.sparsity) config["sparsity"] = c.sparsity->to_string();
  if (c.asked_schedule != o.schedule) config["asked_schedule"] = c.asked_schedule;
  if (c.asked_layout != o.layout) config["asked_layout"] = c.asked_layout;
  json result = {{"config", config},
                 {"topology",
                  {{"ranks", problem.ranks()},
                   {"nodes", problem.topology.nodes()},
                   {"text", problem.topology.to_string()},
                   {"communicator", on.communicator},
                   {"execution_space", on.execution_space},
                   {"attention_kernel", on.kernel},
                   {"threads_per_rank", on.threads}}}};
  return result;
}

json to_json(const CaseReport& report) {
  json result = app::output_head("annulus-bench attention");
  result.update(config_json(report.of, report.on));
  result["forward"] = nullptr;
  result["backward"] = nullptr;
  for (const Pass pass : passes_of(report.of.options))
    result[std::string(plan::name_of(pass))] = pass_json(report, pass);
  result["ranks"] = json::array();
  for (const RankRecord& rank : report.ranks) result["ranks"].push_back(rank_json(report, rank));
  result["check"] = check_json(report.check);
  result["sparsity"] = sparsity_json(report.sparsity);
  return result;
}

std::string to_table(const CaseReport& report) {
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
