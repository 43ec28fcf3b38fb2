#include "bench/attention/measure/report.hpp"

#include <annulus/base/version.hpp>

#include "bench/attention/measure/rates.hpp"

namespace annulus::bench {

using nlohmann::json;
using plan::Pass;

namespace {

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

json pass_json(const Report& report, Pass pass) {
  const PassReport& p = report.passes[index_of(pass)];
  const Rates rates = rates_of(report, pass);
  return {{"seconds", p.seconds.median()},
          {"seconds_min", p.seconds.least()},
          {"seconds_max", p.seconds.most()},
          {"seconds_each", p.seconds.ascending()},
          {"flops", rates.flops},
          {"gflops", rates.gflops},
          {"gflops_per_rank", rates.gflops_per_rank},
          {"tflops_per_rank", 1e-3 * rates.gflops_per_rank},
          {"pairs", rates.pairs},
          {"imbalance", imbalance(report, pass)},
          {"computation_ratio", rates.computation_ratio},
          {"imbalance_degree", {{"worker", p.imbalance.worker}, {"step", p.imbalance.step}}},
          {"local_kernel",
           {{"seconds", p.kernel_seconds.median()},
            {"seconds_min", p.kernel_seconds.least()},
            {"seconds_max", p.kernel_seconds.most()},
            {"gflops_per_rank", rates.kernel_gflops_per_rank}}},
          {"local_kernel_share", rates.kernel_gflops_per_rank > 0
                                     ? json(rates.gflops_per_rank / rates.kernel_gflops_per_rank)
                                     : json()},
          {"sent_bytes", {{"intra_node", rates.intra_node_bytes}, {"inter_node", rates.inter_node_bytes}}},
          {"exposed_communication",
           {{"seconds", rates.exposed_communication_seconds},
            {"seconds_max", rates.exposed_communication_seconds_max},
            {"share", rates.exposed_communication_share},
            {"compute_only_seconds", p.compute_seconds.empty() ? json() : json(p.compute_seconds.median())},
            {"communication_overhead_share",
             p.compute_seconds.empty() ? json()
                                       : json(1 - over(p.compute_seconds.median(), p.seconds.median()))}}},
          {"predicted", predicted_json(p)},
          {"prediction_source", report.prediction_source},
          {"striped_attention", {{"theoretical_maximum_speedup", report.theoretical_speedup}}}};
}

json peaks_json(const RankRecord::Peaks& peaks) {
  json memory;
  for (int c = 0; c < memory_category_count; ++c) {
    memory[std::string(name_of(static_cast<MemoryCategory>(c)))] = peaks[static_cast<std::size_t>(c)];
  }
  return memory;
}

json rank_json(const Report& report, const RankRecord& rank) {
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

}  // namespace

json config_json(const Case& c, const Machinery& on) {
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
                 {"nccl_multicast", o.transport.nccl_multicast},
                 {"repetitions", o.repetitions},
                 {"warm_up", o.warm_up},
                 {"data", data},
                 {"vocabulary_embedding_seed", o.embedding_seed.value_or(o.seed)}};
  if (!o.spin.empty()) config["spin"] = {{"tflops", o.spin}, {"free_sms", o.spin_free}};
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

json to_json(const Report& report) {
  json result = {{"program", "annulus-bench attention"}, {"version", version()}, {"git_hash", git_hash()}};
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

}  // namespace annulus::bench
