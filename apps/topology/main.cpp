// annulus-topology: what nodes and networks of a job are made of, where its ranks are, and what follows from
// it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "base/file.hpp"
#include "common/conventions.hpp"
#include "common/output/output_json.hpp"
#include "common/run_commands.hpp"
#include "topology/inventory.hpp"
#include "topology/options.hpp"
#include "topology/report.hpp"
#include "training/io/atomic.hpp"

namespace annulus::topology_app {
namespace {

/// Writes JSON where --json says. Returns whether it went to stdout.
bool write_json(const TopologyOptions& options, const nlohmann::json& json) {
  if (options.json != "-") app::write_output(options.json, json);
  if (options.json == "-") fmt::print("{}", app::output_text(json));
  return options.json == "-";
}

int save(const TopologyOptions& options, const Variables& variables) {
  const machine::Description description = machine::describe_this_machine();
  std::error_code error;
  std::filesystem::create_directories(options.save, error);
  require(!error, "--save {}: the folder cannot be made: {}", options.save, error.message());
  const std::string host = this_host(description.machine, variables);
  require(is_plain_name(host),
          "--save {}: the node's name '{}' is no name of a file: correct SLURMD_NODENAME or the host name",
          options.save, host);
  io::write_text_atomically(std::filesystem::path(options.save) / (host + ".xml"), description.xml,
                            Links::refuse);
  // A node of the wrong type says so itself, before all are compared.
  machine::Machine machine = description.machine;
  machine.host = host;
  report(machine::node_resources(machine, profile_of(options)).diagnostics, options.strict);
  return 0;
}

int where(const Variables& variables) {
  const auto launched = launched_rank(variables);
  require(launched.has_value(), "--where: no launcher (srun, mpirun) has started this process");
  fmt::print("{} {}\n", launched->rank, this_host(machine::describe_this_machine().machine, variables));
  return 0;
}

int rank(const TopologyOptions& options, const Variables& variables) {
  const RankInventory inventory = take_rank_inventory(options, variables);
  const auto settings = settings_of(inventory.node.machine, inventory.node.resources, inventory.binding,
                                    inventory.profile, variables);
  const bool printed = write_json(options, to_json(inventory, settings));
  std::vector<Diagnostic> diagnostics = inventory.diagnostics;
  // Every rank is refused for itself; the job's first look has warned.
  if (options.execute && !options.strict)
    std::erase_if(diagnostics, [](const Diagnostic& diagnostic) { return !diagnostic.error; });
  report(diagnostics, options.strict);
  if (options.execute) execute(options, inventory, settings);
  if (!printed) fmt::print("{}", shell_text(inventory, settings));
  return 0;
}

/// FLOP/s of this machine's cores; 0 where other nodes are looked at.
double core_flops(const TopologyOptions& options) {
  if (!options.xml.empty() || !options.from.empty()) return 0;
  std::ifstream file("/proc/cpuinfo");
  return machine::processor_flops(std::string(std::istreambuf_iterator<char>(file), {}));
}

machine::Guess guess_of(const TopologyOptions& options, const JobInventory& inventory) {
  const Node& node = inventory.nodes.front();
  machine::Guess guess = machine::guess_cluster(node.machine, node.resources, node.ranks,
                                                topology_of(inventory.job), core_flops(options));
  guess.comments.file = fmt::format(
      "Written by annulus-topology {} ({}) for {}.\nEvery rate is a guess from the class of the device: "
      "measure with 'annulus-bench links --base THIS-FILE --output FILE'.",
      version(), git_hash(), inventory.job.source);
  return guess;
}

/// A cluster file of nodes that are not here.
int write_node_type(const TopologyOptions& options) {
  using machine::Bound;
  const Bound bound = options.bound == "low"    ? Bound::low
                      : options.bound == "high" ? Bound::high
                                                : Bound::usual;
  machine::Guess guess = machine::guess_node_type(options.node_type, bound);
  guess.comments.file += fmt::format(
      "\nWritten by 'annulus-topology --node-type {}{} --output FILE'. Every rate is a guess from the class "
      "of the\ndevice, of which the range stands in brackets: 'annulus-bench links --base THIS-FILE --output "
      "FILE' measures.",
      options.node_type, bound == Bound::usual ? "" : " --bound " + options.bound);
  io::write_text_atomically(options.output, simulator::to_text(guess.cluster, guess.comments));
  return 0;
}

int run(const TopologyOptions& options) {
  if (!options.node_type.empty()) return write_node_type(options);
  const Variables variables = process_variables();
  if (!options.save.empty()) return save(options, variables);
  if (options.where) return where(variables);
  if (options.env || options.execute) return rank(options, variables);

  const JobInventory inventory = take_inventory(options, variables);
  const machine::Guess guess = guess_of(options, inventory);
  const bool printed = write_json(options, to_json(inventory, guess));
  if (!options.launch && !printed) fmt::print("{}", tree_text(inventory, guess));
  std::fflush(stdout);
  report(inventory.diagnostics, options.strict);
  if (options.launch) fmt::print("{}", launch_text(options, inventory, variables));
  if (!options.output.empty())
    io::write_text_atomically(options.output, simulator::to_text(guess.cluster, guess.comments));
  return 0;
}

}  // namespace
}  // namespace annulus::topology_app

int main(int argc, char** argv) {
  CLI::App app("Finds nodes, GPUs, NICs and switches, and says where ranks are to be (docs/topology.md).",
               "annulus-topology");
  annulus::app::add_conventions(app, "annulus-topology");
  annulus::topology_app::TopologyOptions options;
  annulus::topology_app::add_options(app, options);
  return annulus::app::run_program(
      app, [&] { return annulus::topology_app::run(options); }, argc, argv);
}
