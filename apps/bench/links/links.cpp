#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>

#include "bench/commands.hpp"
#include "bench/common/transport_options.hpp"
#include "bench/links/rates.hpp"
#include "bench/links/report.hpp"
#include "common/output/output_json.hpp"
#include "options/checks.hpp"
#include "training/io/atomic.hpp"

namespace annulus::bench {

using options::Shared;
using options::SharedOptions;

namespace {

struct LinksOptions {
  measurement::LinkOptions links;
  measurement::BlockOptions kernels;
  RateOptions rates;
  std::vector<std::string> dtypes = {"f32", "bf16"}, masks = {"full", "causal"};
  std::string kernel = "automatic";
  bool no_kernels = false;
  int ranks_per_node = 0;
  TransportOptions transport;
  std::filesystem::path output, json, base;  ///< empty: none
};

/// Reads the names of the options; throws Error for what makes no sense before any rank talks to another.
void check(LinksOptions& o, int ranks) {
  require(
      ranks >= 2 || !o.no_kernels,
      "links are between ranks, but there is 1, and --no-kernels leaves the rest out: run it with mpirun -np "
      "and 2 ranks or more, or leave --no-kernels out");
  options::check_ranks_per_node(o.ranks_per_node, ranks);
  comm::parse_transport(o.transport.name, "--transport");
  o.kernels.dtypes.clear();
  for (const std::string& name : o.dtypes) o.kernels.dtypes.push_back(parse_dtype(name, "--dtype"));
  o.kernels.masks.clear();
  for (const std::string& name : o.masks)
    o.kernels.masks.push_back(measurement::parse_block_mask(name, "--mask"));
  o.kernels.kernel = attention::parse_kernel(o.kernel, "--kernel");
  o.kernels.sampling = o.rates.sampling = o.links.sampling;
  if (has_device) o.kernels.sampling.settling = o.rates.sampling.settling = 0.2;
  o.rates.dtypes = o.kernels.dtypes;
  o.links.check();
  o.kernels.check();
  o.rates.complete();
}

/// Measures on all ranks of the job, prints tables and writes the cluster file (docs/formats/cluster.md).
int run_links(LinksOptions& o, const comm::MpiEnvironment& mpi) {
  check(o, mpi.size());
  std::optional<simulator::Cluster> base;
  if (mpi.rank() == 0) {
    for (const auto& file : {o.output, o.json})
      if (!file.empty()) io::require_writable(file);
    if (!o.base.empty()) base = simulator::read_cluster(o.base);
  }
  const auto communicator = o.transport.connect(mpi, o.ranks_per_node);
  LinksReport report;
  report.topology = communicator->topology();
  report.hosts = measurement::host_names(*communicator);
  report.transport = communicator->description();
  report.execution_space = Kokkos::DefaultExecutionSpace::name();
  report.threads = Kokkos::DefaultExecutionSpace().concurrency();
  report.base = o.base.string();
  report.measured.links = measurement::measure_links(*communicator, o.links);
  if (communicator->size() == 1)
    report.measured.links.notes.push_back(
        "there is 1 rank, and links are between ranks: they are not measured (mpirun -np 2 and more do)");
  if (!o.no_kernels) {
    report.measured.kernels = measurement::measure_kernels(*communicator, o.kernels);
    report.measured.products = measure_products(*communicator, o.rates);
    report.measured.memory = measure_memory(*communicator, o.rates);
  }
  if (mpi.rank() != 0) return 0;
  report.result = measurement::to_cluster(report.topology, report.measured, base);
  fmt::print("{}", to_table(report));
  app::write_output(o.json, to_json(report));
  if (!o.output.empty())
    io::write_text_atomically(o.output, simulator::to_text(report.result.cluster, comments(report)));
  return 0;
}

}  // namespace

void add_links(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(
      app, chosen, "links",
      "Links and kernels of this machine, for annulus-plan and predictions: messages inside and between "
      "nodes, one rank alone and all at once, the local attention kernel, products with weights and memory "
      "(docs/formats/cluster.md). One rank measures all but the links.",
      run_links);
  SharedOptions shared(command);
  const auto group = [&command = command](const char* name) { command.option_defaults()->group(name); };
  group("Files");
  command.add_option("--output", o.output, "Cluster file to write");
  shared.add(Shared::json, o.json, ": all points with their spread");
  command.add_option("--base", o.base,
                     "Cluster file with what is not measured; default: 8-GPU nodes of the H100's class");
  group("Messages");
  shared.add(Shared::ranks_per_node_of_job, o.ranks_per_node);
  o.transport.add_to(shared);
  command
      .add_option("--min-bytes", o.links.min_bytes,
                  "Bytes of the shortest message, as in 64k; the next are 4 times as long")
      ->transform(options::in_units());
  command.add_option("--max-bytes", o.links.max_bytes, "Bytes of the longest message, at most")
      ->transform(options::in_units());
  shared.add(Shared::repetitions, o.links.sampling.repetitions, " of each point, after a warm-up");
  command.add_option("--seconds", o.links.sampling.seconds,
                     "Seconds per point: no further repetition after them; "
                     "slower messages and kernels are skipped");
  group("Kernels, products and memory");
  command.add_flag("--no-kernels", o.no_kernels,
                   "Measure the links only: neither kernels nor products nor memory");
  shared.add(Shared::head_dim, o.kernels.head_dims, ", of the kernels: 16 to 256 in multiples of 8");
  shared.add(Shared::dtype, o.dtypes, ", of kernels and products");
  command.add_option("--rows", o.kernels.rows, "Query rows, and key rows, of a block of the kernels")
      ->expected(1, -1);
  command.add_option("--mask", o.masks, "Masks of the kernels: full, causal")->expected(1, -1);
  shared.add(Shared::heads, o.kernels.heads, " of the kernels");
  command.add_option("--kv-heads", o.kernels.kv_heads, "Key and value heads of the kernels");
  shared.add(Shared::kernel, o.kernel);
  command.add_option("--width", o.rates.widths, "Widths of the weights of products, which are square")
      ->expected(1, -1);
  command.add_option("--tokens", o.rates.tokens,
                     "Rows of products and of the kernels that memory is timed by; 0: 8192 on a device, 1024 "
                     "on the host");
  command.footer(
      "Example:\n"
      "  mpirun -n 4 annulus-bench links --ranks-per-node 2 --seconds 0.2 --output cluster.toml");
}

}  // namespace annulus::bench
