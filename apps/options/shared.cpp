#include "options/shared.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/error.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/choose.hpp>

#include "common/conventions.hpp"
#include "options/checks.hpp"

namespace annulus::options {

namespace {

void not_negative_kv_heads(std::string_view name, std::int64_t value) {
  require(value >= 0, "{} is {}: it must be positive, or 0 for as many as --heads", name, value);
}
void not_negative_v_head_dim(std::string_view name, std::int64_t value) {
  require(value >= 0, "{} is {}: it must be positive, or 0 for that of --head-dim", name, value);
}
void not_negative_of_cluster(std::string_view name, std::int64_t value) {
  require(value >= 0, "{} is {}: it must be positive, or 0 for those of the cluster file", name, value);
  require(value <= Topology::max_ranks, "{} is {}: at most {} are possible", name, value,
          Topology::max_ranks);
}
void not_negative_ctas(std::string_view name, std::int64_t value) {
  require(value >= 0, "{} is {}: give 1 or more, or 0 for NCCL's choice", name, value);
}

const std::string layouts =
    "Layout, how tokens are dealt to ranks: contiguous, zigzag, striped, block-striped:B, balanced";
const std::string planned = ", or auto: the planner chooses";

std::string schedules() {
  return fmt::format("Schedule, how ranks exchange shards: {}", fmt::join(plan::schedule_names(), ", "));
}

}  // namespace

const Shared Shared::schedule{
    "--schedule", schedules(), nullptr,
    [](std::string_view name, const std::string& value) { plan::check_schedule(value, name); }};
const Shared Shared::schedule_or_auto{
    "--schedule", schedules() + planned, nullptr,
    [](std::string_view name, const std::string& value) { simulator::check_schedule_or_auto(value, name); }};
const Shared Shared::layout{
    "--layout", layouts, nullptr,
    [](std::string_view name, const std::string& value) { Layout::parse(value, name); }};
const Shared Shared::layout_or_auto{
    "--layout", layouts + planned, nullptr,
    [](std::string_view name, const std::string& value) { simulator::check_layout_or_auto(value, name); }};
const Shared Shared::mask{
    "--mask",
    "Mask: full, causal, window:L,R, dilated:W,D, documents:0,A,B,… or blocks:SIZE,FILE; "
    "several joined by + (docs/masks.md)"};
const Shared Shared::placement{
    "--placement",
    "Placement of hybrid:HxC, instead of its last word: head-first keeps the exchange of heads inside a node "
    "where it fits, context-first the ring"};
const Shared Shared::sparsity_of_prediction{
    "--sparsity",
    "Share of the pairs that dynamic sparse attention leaves out, as 0.95, or a tensor dump with a "
    "recorded selection, as dump.h5, or dump.h5:layers.3 of annulus-train (docs/sparsity.md)"};
const Shared Shared::tokens{"--tokens", "Tokens of the whole sequence; 128k is 131072, 1M is 1048576",
                            require_positive};
const Shared Shared::heads{"--heads", "Query heads", require_positive};
const Shared Shared::kv_heads{"--kv-heads", "Key and value heads; 0: as many as query heads",
                              not_negative_kv_heads};
const Shared Shared::head_dim{"--head-dim", "Width of a head, in elements", require_positive};
const Shared Shared::v_head_dim{"--v-head-dim",
                                "Width of a head of V and O (multi-head latent attention: 128 beside "
                                "--head-dim 192); 0: that of Q and K",
                                not_negative_v_head_dim};
const Shared Shared::batch{"--batch", "Sequences in the batch", require_positive};
const Shared Shared::dtype{"--dtype", "Storage type of Q, K, V and dO: f32, bf16 or f16", nullptr,
                           [](std::string_view, const std::string& value) { parse_storage(value); }};
const Shared Shared::kernel{"--kernel",
                            "Local attention kernel: automatic, portable, host_simd, mma, hopper, or "
                            "tensor_cores: one on them or an error"};
const Shared Shared::seed{"--seed", "Seed of the random inputs"};
const Shared Shared::ranks_of_cluster{"--ranks", "Ranks; 0: from the cluster file, else 8",
                                      not_negative_of_cluster};
const Shared Shared::ranks_per_node_of_cluster{
    "--ranks-per-node", "Ranks per node; 0: from the cluster file, else 8", not_negative_of_cluster};
const Shared Shared::cluster{
    "--cluster",
    "Cluster file with links and kernels (docs/formats/cluster.md; annulus-topology --output guesses one); "
    "default: 8-GPU nodes of the H100's class"};
const Shared Shared::ranks_per_node_of_job{
    "--ranks-per-node",
    "Ranks per node, pretended: so many consecutive ranks share one; 0: as the machine says"};
const Shared Shared::transport{
    "--transport",
    "Transport of device memory: automatic (NCCL where every rank has a GPU of its own), mpi or nccl"};
const Shared Shared::max_ctas{"--max-ctas",
                              "CTAs that an NCCL communicator may use, one communicator per channel, two on "
                              "several nodes; 0: NCCL's choice",
                              not_negative_ctas};
const Shared Shared::no_copy_engines{
    "--no-copy-engines", "Messages inside of a node over NCCL, too, and not by the copy engines of the GPUs"};
const Shared Shared::nvlink_multicast{
    "--nvlink-multicast", "NVLink multicast (NVLS) for NCCL; off unless NCCL_NVLS_ENABLE says otherwise"};
const Shared Shared::repetitions{"--repetitions", "Timed repetitions", require_positive};
const Shared Shared::json{"--json", "JSON file to write"};
const Shared Shared::csv{"--csv", "CSV file to write: a row for each case and pass"};
const Shared Shared::html{"--html", "HTML page to write"};

SharedOptions::SharedOptions(CLI::App& command)
    : command_(command), checks_(std::make_shared<std::vector<std::function<void()>>>()) {
  command.option_defaults()->always_capture_default();
  command.callback([checks = checks_] {
    for (const auto& check : *checks) check();
  });
}

CLI::Validator in_units() {
  constexpr std::int64_t kibi = 1024;
  const CLI::Validator number = CLI::AsNumberWithUnit(std::map<std::string, std::int64_t>{
      {"k", kibi}, {"m", kibi * kibi}, {"g", kibi * kibi * kibi}, {"t", kibi * kibi * kibi * kibi}});
  return CLI::Validator(
      [number](std::string& text) {
        const std::string problem = app::without_zeros_in_front(text);
        return problem.empty() ? number(text) : problem;
      },
      "");
}

std::string without_sign(const std::string& text) {
  if (!text.starts_with('-')) return "";
  return fmt::format("{} is negative: give a number from 0 to 2^64 - 1", text);
}

}  // namespace annulus::options
