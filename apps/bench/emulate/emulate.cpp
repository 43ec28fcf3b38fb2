#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "bench/commands.hpp"
#include "bench/emulate/report.hpp"
#include "common/output/output_json.hpp"
#include "options/cluster.hpp"
#include "options/problem.hpp"
#include "prediction/emulator/emulate.hpp"
#include "training/io/atomic.hpp"

namespace annulus::bench {

using options::Shared;
using options::SharedOptions;
using plan::Pass;

namespace {

struct EmulateOptions {
  options::ProblemOptions problem = {.tokens = 512, .heads = 4, .head_dim = 16};
  options::ClusterOptions cluster;
  std::vector<std::string> schedules = {"ring", "double-ring", "topology-burst"}, layouts = {"zigzag"};
  std::string sparsity, kernel = "automatic";
  std::int64_t gather = 0, reduce = 0, offload = 0;  ///< bytes
  double time_scale = 0;                             ///< 0: chosen
  int repetitions = 3;
  bool real_kernels = false, no_overlap = false;
  std::filesystem::path json;
};

struct PassPlans {
  plan::Plan forward, backward;
};

/// What ranks of `cluster` have on their links beside a pass.
prediction::LayerTraffic traffic_beside(Pass pass, const EmulationReport& report,
                                        const simulator::Cluster& cluster) {
  const prediction::Collectives collectives(report.problem.topology, cluster);
  return pass == Pass::forward ? prediction::forward_traffic(report.beside, collectives, cluster)
                               : prediction::backward_traffic(report.beside, collectives, cluster);
}

PassTime predicted(const plan::Plan& plan, const EmulationReport& report) {
  const auto [sharding, copies] = traffic_beside(plan.pass, report, report.cluster);
  const simulator::PlanBeside made =
      simulator::simulate_beside(report.overlap ? plan : simulator::without_overlap(plan), report.cluster,
                                 report.sparsity.selected, {{sharding, copies}});
  const auto& ranks = made.simulation.ranks;
  return {made.simulation.time,
          std::ranges::max(ranks, {}, &simulator::RankSummary::exposed_communication).exposed_communication,
          made.traffic_ended};
}

/// Bytes that travel beside passes, those of collectives a multiple of one f32 per rank. Throws Error naming
/// the option.
prediction::LayerBytes bytes_beside(const EmulateOptions& o, const Topology& topology) {
  for (const auto& [option, bytes] :
       {std::pair{"--gather", o.gather}, {"--reduce", o.reduce}, {"--offload", o.offload}})
    require(bytes >= 0, "{} is {}: give a number of bytes, or 0 for none", option, bytes);
  const std::int64_t ranks = topology.ranks(), unit = ranks * std::int64_t{sizeof(float)};
  constexpr std::int64_t most_bytes = std::int64_t{4} << 30;  // of all ranks, which are threads
  for (const auto& [option, bytes] : {std::pair{"--gather", o.gather}, {"--reduce", o.reduce}}) {
    require(bytes == 0 || ranks > 1, "{} is {}: one rank has nothing to exchange with others", option, bytes);
    require(
        bytes <= most_bytes / ranks,
        "{} is {}: {} ranks, all in this process, can hold {} each; docs/emulation.md says how to shrink a "
        "case",
        option, bytes, ranks, most_bytes / ranks);
  }
  const auto whole = [&](std::int64_t bytes) { return double((bytes + unit - 1) / unit * unit); };
  return {.gathered = whole(o.gather), .summed = whole(o.reduce), .copied = double(o.offload)};
}

/// What travels beside a pass of the emulation: real collectives, and copies that only take time.
emulator::Beside emulated_beside(Pass pass, const EmulationReport& report, const simulator::Cluster& slow) {
  const std::int64_t ranks = report.problem.ranks();
  emulator::Beside beside{.flows = {{traffic_beside(pass, report, slow).copies}},
                          .gathered_bytes = std::int64_t(report.beside.gathered) / ranks};
  if (pass == Pass::backward)
    beside.summed_floats = std::int64_t(report.beside.summed) / ranks / std::int64_t{sizeof(float)};
  return beside;
}

/// Rows for all schedules on all layouts, with what the simulator predicts; plans of those that can be
/// served.
std::vector<std::optional<PassPlans>> predict(const EmulateOptions& o, EmulationReport& report) {
  std::vector<std::optional<PassPlans>> all;
  for (const std::string& name : o.schedules) {
    for (const std::string& layout : o.layouts) {
      plan::Problem problem = report.problem;
      problem.layout = Layout::parse(layout, "--layout");
      EmulatedSchedule& row = report.schedules.emplace_back(EmulatedSchedule{name, layout, {}, {}, {}});
      std::optional<PassPlans>& plans = all.emplace_back();
      try {
        plans = {plan::make_plan(name, problem, Pass::forward, "--schedule"),
                 plan::make_plan(name, problem, Pass::backward, "--schedule")};
      } catch (const Error& error) {
        row.reason = error.what();
        continue;
      }
      row.forward.predicted = predicted(plans->forward, report);
      row.backward.predicted = predicted(plans->backward, report);
    }
  }
  return all;
}

/// See --time-scale.
double scale_of(const EmulateOptions& o, const EmulationReport& report) {
  require(std::isfinite(o.time_scale) && o.time_scale >= 0,
          "--time-scale is {}: it must be positive, or 0 to choose it", o.time_scale);
  constexpr double most_seconds = 1e6;  // which is no slip of the hand any more, and fits the clock
  const auto [shortest, longest] = report.predicted_range();
  // Passes may send nothing, but ranks wait some latencies before they start.
  const double least = std::max(shortest, emulator::longest_latency(report.cluster, report.problem.topology));
  const double scale = o.time_scale > 0 ? o.time_scale : longest > 0 ? 0.5 / least : 1;
  require(
      longest * scale <= most_seconds,
      "the longest pass would take {:.3g} s, of {:.3g} s by the rates of {}: lower --time-scale, or correct "
      "the rates",
      longest * scale, longest, report.origin);
  return scale;
}

/// `annulus-bench emulate` (docs/emulation.md), in one process: ranks are threads.
int run_emulate(EmulateOptions& o, const comm::MpiEnvironment& mpi) {
  require(mpi.size() == 1,
          "annulus-bench emulate makes its ranks itself, as threads of one process: "
          "run it without mpirun and say --ranks");
  if (!o.json.empty()) io::require_writable(o.json);
  EmulationReport report;
  report.cluster = options::cluster_of(o.cluster);
  report.origin = options::rates_text(o.cluster, report.cluster);
  report.problem = options::problem_of(o.problem);
  report.problem.topology = options::topology_of(o.cluster, report.cluster);
  report.problem.check();
  require(o.sparsity.empty() || !o.real_kernels,
          "--sparsity has an effect only on kernels that sleep: leave out --real-kernels, or measure real "
          "ones with annulus-bench attention --sparsity");
  report.sparsity = options::sparsity_of(o.sparsity, report.problem);
  report.beside = bytes_beside(o, report.problem.topology);
  report.synthetic_kernel = !o.real_kernels;
  report.overlap = !o.no_overlap;
  const std::vector<std::optional<PassPlans>> plans = predict(o, report);
  report.time_scale = scale_of(o, report);

  const simulator::Cluster slow = emulator::slowed(report.cluster, report.time_scale);
  emulator::EmulationOptions options;
  options.repetitions = o.repetitions;
  options.settings.overlap = report.overlap;
  options.beside_forward = emulated_beside(Pass::forward, report, slow);
  options.beside_backward = emulated_beside(Pass::backward, report, slow);
  options.settings.kernel = attention::parse_kernel(o.kernel, "--kernel");
  options.selected = report.sparsity.selected;
  if (report.synthetic_kernel) {
    options.settings.synthetic_kernel = emulator::sleeping_kernel(slow, report.problem);
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!plans[i]) continue;
    EmulatedSchedule& row = report.schedules[i];
    for (const emulator::Passes& passes :
         emulator::run(plans[i]->forward, plans[i]->backward, slow, options)) {
      row.forward.add(passes.forward, report.time_scale);
      row.backward.add(passes.backward, report.time_scale);
    }
  }
  fmt::print("{}", to_table(report));
  app::write_output(o.json, to_json(report));
  return 0;
}

}  // namespace

void add_emulate(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(
      app, chosen, "emulate",
      "Runs schedules on an emulated cluster, without mpirun: ranks are threads, tensors are real, "
      "links have the cluster's speed and kernels sleep as long as its kernels take. Shows what the "
      "simulator predicts beside it (docs/emulation.md).",
      run_emulate);
  SharedOptions shared(command);
  options::add_cluster(shared, o.cluster);
  shared.add(Shared::schedule, o.schedules, "; one or more");
  shared.add(Shared::layout, o.layouts, "; every schedule runs on each");
  options::add_problem(shared, o.problem);
  shared.add(Shared::sparsity_of_prediction, o.sparsity);
  const auto beside = [&](const char* name, std::int64_t& bytes, const char* help) {
    command.add_option(name, bytes, help)->transform(options::in_units());
  };
  beside(
      "--gather", o.gather,
      "Bytes of weights, of all ranks together, that the ranks gather beside each pass, as ZeRO stage 3 does "
      "for the next layer");
  beside("--reduce", o.reduce,
         "Bytes of a gradient that the ranks sum beside the backward pass, as ZeRO stages 2 and 3 do for the "
         "last layer");
  beside(
      "--offload", o.offload,
      "Bytes of activations that each rank copies to its host beside the forward pass, and back beside the "
      "backward pass");
  command.add_option("--time-scale", o.time_scale,
                     "Factor by which everything takes longer; "
                     "0: so large that the shortest pass, or the latency of a link where that is longer, "
                     "takes half a second");
  shared.add(Shared::repetitions, o.repetitions, " of each schedule; the fastest counts");
  command.add_flag("--real-kernels", o.real_kernels, "Kernels compute, at this machine's speed");
  shared.add(Shared::kernel, o.kernel, " (with --real-kernels)");
  command.add_flag("--no-overlap", o.no_overlap, "Ranks wait for transfers before they compute");
  shared.add(Shared::json, o.json, ": the results");
  command.footer(
      "Example:\n"
      "  annulus-bench emulate --ranks 8 --ranks-per-node 4 --schedule ring double-ring topology-burst");
}

}  // namespace annulus::bench
