#include "bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <annulus/base/version.hpp>

namespace annulus::bench {

using nlohmann::json;
using plan::Pass;

namespace {

const PassRecord& record(const RankRecord& rank, Pass pass) {
  return pass == Pass::forward ? rank.forward : rank.backward;
}

std::int64_t all_pairs(const Report& report, Pass pass) {
  std::int64_t sum = 0;
  for (const RankRecord& rank : report.ranks) sum += record(rank, pass).pairs;
  return sum;
}

double seconds(const Report& report, Pass pass) {
  return pass == Pass::forward ? report.forward_seconds : report.backward_seconds;
}

/// A fraction of what may be zero.
double over(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

double gflops(const Report& report, Pass pass) {
  return over(flops(report.problem, pass, all_pairs(report, pass)) * 1e-9, seconds(report, pass));
}

json pass_json(const Report& report, Pass pass) {
  return {{"seconds", seconds(report, pass)},
          {"flops", flops(report.problem, pass, all_pairs(report, pass))},
          {"gflops", gflops(report, pass)},
          {"gflops_per_rank", gflops(report, pass) / static_cast<double>(report.ranks.size())},
          {"pairs", all_pairs(report, pass)},
          {"imbalance", imbalance(report, pass)}};
}

json rank_pass_json(const PassRecord& r) {
  return {{"seconds", {{"min", r.least_seconds}, {"median", r.median_seconds}, {"max", r.most_seconds}}},
          {"waiting_share", r.waiting_share},
          {"sent_bytes", r.sent_bytes},
          {"received_bytes", r.received_bytes},
          {"sent_bytes_between_nodes", r.sent_bytes_between_nodes},
          {"pairs", r.pairs}};
}

json config_json(const AttentionOptions& o, const plan::Problem& problem) {
  json data = json::array();
  for (const auto& path : o.data) data.push_back(path.string());
  return {{"schedule", o.schedule},
          {"layout", problem.layout.to_string()},
          {"mask", o.mask},
          {"effective_mask", problem.mask.to_string()},
          {"tokens", o.tokens},
          {"heads", o.heads},
          {"kv_heads", problem.kv_heads},
          {"head_dim", o.head_dim},
          {"batch", o.batch},
          {"dtype", o.dtype},
          {"kernel", o.kernel},
          {"seed", o.seed},
          {"repetitions", o.repetitions},
          {"warm_up", 1},
          {"data", data},
          {"vocabulary_embedding_seed", o.embedding_seed.value_or(o.seed)}};
}

}  // namespace

double flops(const plan::Problem& problem, Pass pass, std::int64_t pairs) {
  const double forward = 4.0 * static_cast<double>(pairs) * problem.head_dim;
  return pass == Pass::forward ? forward : 2.5 * forward;
}

double imbalance(const Report& report, Pass pass) {
  std::int64_t most = 0;
  for (const RankRecord& rank : report.ranks) most = std::max(most, record(rank, pass).pairs);
  const double mean =
      over(static_cast<double>(all_pairs(report, pass)), static_cast<double>(report.ranks.size()));
  return mean > 0 ? static_cast<double>(most) / mean : 1.0;
}

json to_json(const Report& report) {
  json ranks = json::array();
  for (const RankRecord& rank : report.ranks) {
    json memory = {{"resident", rank.peak_resident_bytes}};
    for (int c = 0; c < memory_category_count; ++c) {
      memory[std::string(name_of(static_cast<MemoryCategory>(c)))] =
          rank.peak_bytes[static_cast<std::size_t>(c)];
    }
    ranks.push_back({{"forward", rank_pass_json(rank.forward)},
                     {"backward", rank_pass_json(rank.backward)},
                     {"peak_bytes", memory}});
  }
  json check;
  if (report.check) {
    check = {{"passed", report.check->passed()},
             {"tolerance", report.check->tolerance},
             {"errors", json::object()}};
    for (const auto& [name, error] : report.check->errors) check["errors"][name] = error;
  }
  return {{"program", "annulus-bench attention"},
          {"version", version()},
          {"git_hash", git_hash()},
          {"config", config_json(report.options, report.problem)},
          {"topology",
           {{"ranks", report.problem.ranks()},
            {"nodes", report.problem.topology.nodes()},
            {"text", report.problem.topology.to_string()},
            {"communicator", report.communicator},
            {"execution_space", report.execution_space},
            {"threads_per_rank", report.threads}}},
          {"forward", pass_json(report, Pass::forward)},
          {"backward", pass_json(report, Pass::backward)},
          {"ranks", ranks},
          {"check", check}};
}

std::string to_table(const Report& report) {
  const plan::Problem& p = report.problem;
  std::string text = fmt::format(
      "{} {} {}, {} tokens, {} heads ({} kv), head_dim {}, batch {}, {}, on {} with {} {} threads each\n"
      "{:>5} {:>8} {:>32} {:>9} {:>8} {:>12} {:>14} {:>12}\n",
      report.options.schedule, p.layout.to_string(), report.options.mask, p.mask.tokens(), p.heads,
      p.kv_heads, p.head_dim, p.batch, report.options.dtype, p.topology.to_string(), report.threads,
      report.execution_space, "rank", "pass", "ms min / median / max", "GFLOP/s", "waiting", "MiB sent",
      "Mpairs", "exchange MiB");
  constexpr double mib = 1024.0 * 1024.0;
  const auto communication = static_cast<std::size_t>(MemoryCategory::communication);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (std::size_t i = 0; i < report.ranks.size(); ++i) {
      const PassRecord& r = record(report.ranks[i], pass);
      text += fmt::format("{:>5} {:>8} {:>32} {:>9.2f} {:>7.1f}% {:>12.3f} {:>14.3f} {:>12.3f}\n", i,
                          plan::name_of(pass),
                          fmt::format("{:.2f} / {:.2f} / {:.2f}", 1e3 * r.least_seconds,
                                      1e3 * r.median_seconds, 1e3 * r.most_seconds),
                          over(flops(p, pass, r.pairs) * 1e-9, r.median_seconds), 100 * r.waiting_share,
                          static_cast<double>(r.sent_bytes) / mib, 1e-6 * static_cast<double>(r.pairs),
                          static_cast<double>(report.ranks[i].peak_bytes[communication]) / mib);
    }
    text += fmt::format("{:>5} {:>8} {:>32} {:>9.2f}   pairs of the busiest rank: {:.3f} of the mean\n",
                        "all", plan::name_of(pass), fmt::format("{:.2f}", 1e3 * seconds(report, pass)),
                        gflops(report, pass), imbalance(report, pass));
  }
  if (report.check) {
    text += fmt::format("check {}: relative errors", report.check->passed() ? "passed" : "FAILED");
    for (const auto& [name, error] : report.check->errors) text += fmt::format(" {} {:.2e}", name, error);
    text += fmt::format(", tolerance {:.0e}\n", report.check->tolerance);
  }
  return text;
}

}  // namespace annulus::bench
