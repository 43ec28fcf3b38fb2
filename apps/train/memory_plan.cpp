#include "memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/base/version.hpp>

#include "base/units.hpp"
#include "common/conventions.hpp"
#include "common/text.hpp"
#include "host_rates.hpp"
#include "memory_page.hpp"
#include "options/cluster.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"

namespace annulus::app {

using training::MemoryPlan;
using training::PlannedMachine;
using training::PlannedPolicy;

namespace {

PlannedMachine machine_of(const training::Config& config, const MemoryPlanOptions& options) {
  PlannedMachine machine;
  const options::ClusterOptions where{
      .ranks = options.ranks,
      .ranks_per_node = options.ranks_per_node > 0 ? options.ranks_per_node : config.parallel.ranks_per_node,
      .file = options.cluster.empty() ? std::filesystem::path(config.attention.cluster) : options.cluster};
  machine.cluster = options::cluster_of(where);
  machine.topology = options::topology_of(where, machine.cluster);
  machine.rates = where.file.empty() ? std::string(simulator::default_cluster_text)
                                     : simulator::rates_text(machine.cluster, where.file);
  machine.on_gpu = config.run.device == "gpu" ||
                   (config.run.device == "auto" && (has_device || !options.gpu_memory.empty()));
  require(machine.on_gpu || options.gpu_memory.empty(),
          "--gpu-memory is of no use with run.device = 'cpu': take --host-memory, or --set run.device=gpu");
  if (where.file.empty() && !machine.on_gpu) {
    HostRates measured = measure_host(config, machine.topology);
    machine.cluster = std::move(measured.cluster);
    machine.rates = std::move(measured.source);
  }
  if (!options.gpu_memory.empty())
    machine.gpu_memory = training::parse_bytes(options.gpu_memory, "--gpu-memory");
  if (!options.host_memory.empty())
    machine.host_memory = training::parse_bytes(options.host_memory, "--host-memory");
  return machine;
}

std::string fit_text(const PlannedPolicy& policy) {
  if (policy.fits()) return "fits";
  if (policy.missing_device > 0) return fmt::format("lacks {}", binary_text(policy.missing_device));
  return fmt::format("lacks {} of the host", binary_text(policy.missing_host));
}

const prediction::PeakBytes& peak(const PlannedPolicy& policy, bool on_gpu) {
  return on_gpu ? policy.bytes.device : policy.bytes.host;
}

/// Tokens in a second: a whole number, where that says anything.
std::string rate_text(double rate) {
  return rate >= 100 ? fmt::format("{:.0f}", rate) : fmt::format("{:.3g}", rate);
}

/// A column is in one unit.
void print_policy(const PlannedPolicy& policy, const MemoryPlan& plan, const PlannedMachine& machine,
                  const BinaryUnit& unit) {
  const double seconds = policy.time.total();
  const auto in_unit = [&](std::int64_t bytes) { return fmt::format("{:.2f}", double(bytes) / unit.bytes); };
  fmt::print("  {:<62} {:>9} {:>9} {:>9} {:>10} {:>9.4g}  {}\n", policy.outline,
             in_unit(peak(policy, machine.on_gpu).total),
             machine.on_gpu ? in_unit(policy.bytes.host.total) : "-", duration_text(seconds),
             rate_text(plan.step_tokens / seconds / machine.topology.ranks()),
             plan.step_flops / seconds / machine.topology.ranks() / 1e12, fit_text(policy));
}

/// Policies whose optimizer lies where the configuration has it, with none or all of the layers offloaded;
/// all where none of these fits.
std::vector<const PlannedPolicy*> shown_policies(const MemoryPlan& plan) {
  std::vector<const PlannedPolicy*> some, all;
  bool fits = false;
  for (const PlannedPolicy& policy : plan.policies) {
    all.push_back(&policy);
    const double offload = policy.memory.offload_activations;
    if (policy.memory.offload_optimizer != plan.configured.memory.offload_optimizer) continue;
    if (offload > 0 && offload < 1 && offload != plan.configured.memory.offload_activations) continue;
    some.push_back(&policy);
    fits |= policy.fits();
  }
  return fits ? some : all;
}

void print(const MemoryPlan& plan, const PlannedMachine& machine, const MemoryPlanOptions& options) {
  const training::Config& config = plan.config;
  fmt::print(
      "predicted, not measured: {:.2f} M parameters, sequences of {} tokens on {}; attention {} / {} / {}; "
      "parallel.zero = {}\n",
      double(model::ParameterMap(config.model).size()) / 1e6, config.data.sequence_length,
      machine.topology.to_string(), plan.schedule, plan.layout, config.attention.mask, config.parallel.zero);
  fmt::print("{}{}", taken_text(machine, plan.libraries, plan.spare), rates_line(config, machine, options));
  if (!config.attention.sparsity.empty())
    fmt::print("selected pairs are taken at the rates of dense attention, and their selection at no time\n");
  const PlannedPolicy& now = plan.configured;
  fmt::print("\n{}: {}{}\n", config.chooses_recompute() ? "memory.recompute = 'auto' takes" : "as configured",
             plan.reason.empty() ? now.outline : plan.reason,
             options.gpu_memory.empty() && options.host_memory.empty() ? "" : ", " + fit_text(now));
  const prediction::PeakBytes& most = peak(now, machine.on_gpu);
  fmt::print("  predicted_peak_bytes of rank {}, in the part '{}': {}\n", now.rank, most.moment,
             binary_text(most.total));
  for (int i = 0; i < memory_category_count; ++i) {
    const std::int64_t bytes = most.at_once[static_cast<std::size_t>(i)];
    const std::int64_t host = machine.on_gpu ? now.bytes.host.categories[static_cast<std::size_t>(i)] : 0;
    if (bytes + host == 0) continue;
    fmt::print("    {:<14} {:>13}", name_of(static_cast<MemoryCategory>(i)), binary_text(bytes));
    if (host > 0) fmt::print("   and {} of the host", binary_text(host));
    fmt::print("\n");
  }
  fmt::print("  an optimizer step takes {}\n", duration_text(now.time.total()));
  for (const auto& [name, seconds] : now.time.parts())
    if (seconds > 0) fmt::print("    {:<24} {:>10}\n", name, duration_text(seconds));
  const std::vector<const PlannedPolicy*> shown = shown_policies(plan);
  const BinaryUnit unit = unit_of(plan, machine.on_gpu);
  fmt::print("\n  {:<62} {:>9} {:>9} {:>9} {:>10} {:>9}\n", "policy, the fastest first",
             fmt::format("{}{}", machine.on_gpu ? "GPU " : "", unit.name), fmt::format("host {}", unit.name),
             "a step", "tok/s/rank", "TF/s");
  for (const PlannedPolicy* policy : shown) print_policy(*policy, plan, machine, unit);
  if (shown.size() < plan.policies.size())
    fmt::print("  {} more, with other shares of offloaded layers or the optimizer offloaded: --json FILE\n",
               plan.policies.size() - shown.size());
}

nlohmann::json to_json(const MemoryPlan& plan, const PlannedMachine& machine) {
  nlohmann::json json = plan_json(machine, plan.libraries, plan.spare);
  json["schedule"] = plan.schedule;
  json["layout"] = plan.layout;
  json["tokens"] = plan.step_tokens;
  json["flops"] = plan.step_flops;
  json["config"] = plan.config.to_toml();
  json["configured"] = policy_json(plan.configured, machine.on_gpu);
  if (!plan.reason.empty()) json["reason"] = plan.reason;
  json["moments"] = training::moments_json(plan.configured.bytes.moments);
  if (const auto& validation = plan.configured.bytes.validation)
    json["validation"] = training::moments_json({*validation}).front();
  json["policies"] = nlohmann::json::array();
  for (const PlannedPolicy& policy : plan.policies)
    json["policies"].push_back(policy_json(policy, machine.on_gpu));
  return json;
}

}  // namespace

nlohmann::json policy_json(const PlannedPolicy& policy, bool on_gpu) {
  const training::Config::Memory& m = policy.memory;
  nlohmann::json json = {{"outline", policy.outline},
                         {"memory",
                          {{"recompute", m.recompute},
                           {"store_fraction", m.store_fraction},
                           {"layers_without_recompute", m.layers_without_recompute},
                           {"chunk_rows", m.chunk_rows},
                           {"offload_activations", m.offload_activations},
                           {"offload_optimizer", m.offload_optimizer}}},
                         {"rank", policy.rank},
                         {"fits", policy.fits()},
                         {"missing_bytes", std::max<std::int64_t>(0, policy.missing_device)},
                         {"missing_host_bytes", std::max<std::int64_t>(0, policy.missing_host)},
                         {"seconds", policy.time.total()}};
  nlohmann::json& peaks = json["predicted_peak_bytes"] = training::peaks_json(policy.bytes);
  if (on_gpu) peaks["device"]["moment"] = policy.bytes.device.moment;
  for (const auto& [name, seconds] : policy.time.parts())
    json["predicted_seconds"][std::string(name)] = seconds;
  return json;
}

nlohmann::json plan_json(const PlannedMachine& machine, std::int64_t libraries, std::int64_t spare) {
  return {{"format_version", 1},
          {"version", version()},
          {"git_hash", git_hash()},
          {"ranks", machine.topology.ranks()},
          {"ranks_per_node", machine.topology.most_ranks_on_a_node()},
          {"rates", machine.rates},
          {"gpu_memory", machine.gpu_memory},
          {"host_memory", machine.host_memory},
          {"gpu_libraries_bytes", libraries},
          {"gpu_spare_bytes", spare}};
}

std::string taken_text(const PlannedMachine& machine, std::int64_t libraries, std::int64_t spare) {
  if (!machine.on_gpu) return "";
  return fmt::format("of a GPU, {} are taken as those of CUDA, NCCL and cuBLAS beside the arrays below{}\n",
                     binary_text(libraries),
                     spare > 0 ? fmt::format(", and {} ({:.1f} %) stay free", binary_text(spare),
                                             100 * double(spare) / double(machine.gpu_memory))
                               : "");
}

std::string rates_line(const training::Config& config, const PlannedMachine& machine,
                       const MemoryPlanOptions& options) {
  return fmt::format("times by rates of {}{}\n", machine.rates,
                     options.cluster.empty() && config.attention.cluster.empty()
                         ? "; --cluster FILE names another machine (annulus-bench links measures one)"
                         : "");
}

void add_memory_plan(CLI::App& app, MemoryPlanOptions& options) {
  auto* const plan = app.add_flag(
      "--plan-memory", options.plan,
      "Predict memory and time of an optimizer step for every policy of memory.*, and end; needs no GPU and "
      "only one process (docs/memory.md)");
  const auto add = [&](const char* name, auto& to, const char* help) {
    return app.add_option(name, to, help)->needs(plan);
  };
  add("--gpu-memory", options.gpu_memory, "Memory of one GPU that the run may use, as in 141GB or 79.6GiB");
  add("--host-memory", options.host_memory, "Memory of one node that all its ranks together may use");
  add("--ranks", options.ranks, "Ranks of the run; default: those of the cluster file, else 8")
      ->check(at_least(1));
  add("--ranks-per-node", options.ranks_per_node,
      "Ranks on one node; default: parallel.ranks_per_node, else those of the cluster file, else 8")
      ->check(at_least(1));
  add("--cluster", options.cluster,
      "File of links, kernels and rates (docs/formats/cluster.md); default: attention.cluster, else "
      "measured rates for CPUs, and for GPUs a cluster of 8-GPU nodes of the H100's class");
  add("--json", options.json, "File to which the plan is written");
  auto* const longest = app.add_flag("--longest", options.longest,
                                     "Print instead how long a sequence fits with every policy "
                                     "into --gpu-memory and --host-memory; data.sequence_length is ignored");
  longest->needs(plan);
  auto* const html =
      add("--html", options.html, "File to which a page with the memory over an optimizer step is written")
          ->excludes(longest);
  add("--measured", options.measured, "Folder of a run whose memory.json is drawn beside the prediction")
      ->needs(html);
}

int plan_memory(const training::Config& config, const MemoryPlanOptions& options) {
  const PlannedMachine machine = machine_of(config, options);
  if (options.longest) return plan_longest(config, machine, options);
  const MemoryPlan plan = training::plan_memory(config, machine);
  print(plan, machine, options);
  if (!options.json.empty())
    io::write_text_atomically(options.json, io::json_text(to_json(plan, machine)) + "\n");
  if (!options.html.empty())
    io::write_text_atomically(options.html, memory_page(plan, machine, options.measured));
  std::fflush(stdout);
  return plan.configured.fits() ? 0 : 3;
}

}  // namespace annulus::app
