#include "options/shared.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <map>

#include <annulus/base/error.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/sequence/layout.hpp>
#include <annulus/simulate/choose.hpp>
#include <annulus/topology/topology.hpp>

#include "options/checks.hpp"

namespace annulus::options {

namespace {

using NumberCheck = void (*)(std::string_view name, std::int64_t value);
using TextCheck = void (*)(std::string_view name, const std::string& value);

/// A row of the table.
struct Row {
  Shared option;
  const char* name;
  std::string help;
  NumberCheck number = nullptr;  ///< nullptr: any
  TextCheck text = nullptr;      ///< nullptr: any, or checked where it is read
};

void not_negative_kv_heads(std::string_view name, std::int64_t value) {
  require(value >= 0, "{} is {}: it must be positive, or 0 for as many as --heads", name, value);
}
void not_negative_of_cluster(std::string_view name, std::int64_t value) {
  require(value >= 0, "{} is {}: it must be positive, or 0 for those of the cluster file", name, value);
  require(value <= Topology::max_ranks, "{} is {}: at most {} are possible", name, value,
          Topology::max_ranks);
}
void not_negative_ctas(std::string_view name, std::int64_t value) {
  require(value >= 0, "{} is {}: give 1 or more, or 0 for NCCL's choice", name, value);
}

void known_schedule(std::string_view name, const std::string& value) {
  plan::check_schedule(value, name);
}
void known_schedule_or_auto(std::string_view name, const std::string& value) {
  simulate::check_schedule_or_auto(value, name);
}
void known_layout(std::string_view name, const std::string& value) {
  Layout::parse(value, name);
}
void known_layout_or_auto(std::string_view name, const std::string& value) {
  simulate::check_layout_or_auto(value, name);
}

void known_storage(std::string_view, const std::string& value) {
  parse_storage(value);
}

std::vector<Row> make_table() {
  const std::string schedules =
      fmt::format("Schedule, how ranks exchange shards: {}", fmt::join(plan::schedule_names(), ", "));
  const std::string layouts =
      "Layout, how tokens are dealt to ranks: contiguous, zigzag, striped, block-striped:B";
  const std::string planned = ", or auto: the planner chooses";
  return {
      {Shared::schedule, "--schedule", schedules, nullptr, known_schedule},
      {Shared::schedule_or_auto, "--schedule", schedules + planned, nullptr, known_schedule_or_auto},
      {Shared::layout, "--layout", layouts, nullptr, known_layout},
      {Shared::layout_or_auto, "--layout", layouts + planned, nullptr, known_layout_or_auto},
      {Shared::mask, "--mask",
       "Mask: full, causal, window:L,R, dilated:W,D, documents:0,A,B,… or blocks:SIZE,FILE; several joined "
       "by "
       "+ (docs/masks.md)"},
      {Shared::placement, "--placement",
       "Placement of hybrid:HxC, instead of its last word: head-first keeps the exchange of heads inside a "
       "node "
       "where it fits, context-first the ring"},
      {Shared::tokens, "--tokens", "Tokens of the whole sequence; 128k is 131072, 1M is 1048576",
       require_positive},
      {Shared::heads, "--heads", "Query heads", require_positive},
      {Shared::kv_heads, "--kv-heads", "Key and value heads; 0: as many as query heads",
       not_negative_kv_heads},
      {Shared::head_dim, "--head-dim", "Width of a head, in elements", require_positive},
      {Shared::batch, "--batch", "Sequences in the batch", require_positive},
      {Shared::dtype, "--dtype", "Storage type of Q, K, V and dO: f32, bf16 or f16", nullptr, known_storage},
      {Shared::kernel, "--kernel",
       "Local attention kernel: automatic, portable, host_simd, mma, hopper, or tensor_cores: one on them or "
       "an "
       "error"},
      {Shared::seed, "--seed", "Seed of the random inputs"},
      {Shared::ranks_of_cluster, "--ranks", "Ranks; 0: from the cluster file, else 8",
       not_negative_of_cluster},
      {Shared::ranks_per_node_of_cluster, "--ranks-per-node",
       "Ranks per node; 0: from the cluster file, else 8", not_negative_of_cluster},
      {Shared::cluster, "--cluster",
       "Cluster file with links and kernels (docs/formats/cluster.md; annulus-topology --output guesses "
       "one); "
       "default: 8-GPU nodes of the H100's class"},
      {Shared::ranks_per_node_of_job, "--ranks-per-node",
       "Ranks per node, pretended: so many consecutive ranks share one; 0: as the machine says"},
      {Shared::transport, "--transport",
       "Transport of device memory: automatic (NCCL where every rank has a GPU of its own), mpi or nccl"},
      {Shared::max_ctas, "--max-ctas",
       "CTAs that an NCCL communicator may use, one communicator per channel, two on several nodes; 0: "
       "NCCL's choice",
       not_negative_ctas},
      {Shared::no_copy_engines, "--no-copy-engines",
       "Messages inside of a node over NCCL, too, and not by the copy engines of the GPUs"},
      {Shared::nccl_multicast, "--nccl-multicast",
       "NVLink multicast (NVLS) for NCCL; off unless NCCL_NVLS_ENABLE says otherwise"},
      {Shared::repetitions, "--repetitions", "Timed repetitions", require_positive},
      {Shared::json, "--json", "JSON file to write"},
      {Shared::csv, "--csv", "CSV file to write: a row for each case and pass"},
      {Shared::html, "--html", "HTML page to write"},
  };
}

const Row& row_of(Shared option) {
  static const std::vector<Row> table = make_table();
  for (const Row& row : table)
    if (row.option == option) return row;
  fail("the table of shared options lacks row {}", static_cast<int>(option));
}

}  // namespace

SharedOptions::SharedOptions(CLI::App& command)
    : command_(command), checks_(std::make_shared<std::vector<std::function<void()>>>()) {
  command.option_defaults()->always_capture_default();
  command.callback([checks = checks_] {
    for (const auto& check : *checks) check();
  });
}

std::string SharedOptions::name_of(Shared option) {
  return row_of(option).name;
}

std::string SharedOptions::help_of(Shared option, std::string_view more) {
  return row_of(option).help + std::string(more);
}

void SharedOptions::check_number(Shared option, std::int64_t value) {
  const Row& row = row_of(option);
  if (row.number != nullptr) row.number(row.name, value);
}

void SharedOptions::check_text(Shared option, const std::string& value) {
  const Row& row = row_of(option);
  if (row.text != nullptr) row.text(row.name, value);
}

CLI::Validator in_units() {
  constexpr std::int64_t kibi = 1024;
  return CLI::AsNumberWithUnit(std::map<std::string, std::int64_t>{{"k", kibi},
                                                                   {"m", kibi * kibi},
                                                                   {"g", kibi * kibi * kibi},
                                                                   {"t", kibi * kibi * kibi * kibi}})
      .description("");
}

std::string without_sign(const std::string& text) {
  if (!text.starts_with('-')) return "";
  return fmt::format("{} is negative: give a number from 0 to 2^64 - 1", text);
}

}  // namespace annulus::options
