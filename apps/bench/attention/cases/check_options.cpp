#include <fmt/ranges.h>

#include <algorithm>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/choose.hpp>

#include "bench/attention/cases/case.hpp"
#include "bench/attention/cases/options.hpp"
#include "bench/attention/local/ring_steps.hpp"
#include "options/checks.hpp"
#include "prediction/emulator/spin.hpp"

namespace annulus::bench {

namespace {

/// A mask that is wrong for every length is a slip; one that is wrong for some is refused there.
void check_mask(const std::string& mask, const std::vector<AttentionOptions>& cases) {
  std::optional<Error> first;
  for (const AttentionOptions& o : cases) {
    if (o.mask != mask) continue;
    if (takes_documents_of_data(o)) return;  // known when the data are read
    try {
      Mask::parse(mask, o.tokens, "--mask");
      return;
    } catch (const Error& error) {
      if (!first) first = error;
    }
  }
  if (first) throw Error(*first);
}

void check_values(const SweepOptions& o, int ranks) {
  for (const std::int64_t tokens : o.tokens_per_rank) options::require_positive("--tokens-per-rank", tokens);
  for (const int some : o.ranks) {
    require(some >= 1 && some <= ranks, "--ranks {}: this job has {}; start more or take fewer", some, ranks);
  }
  const auto planned = [](const std::vector<std::string>& values) {
    return std::ranges::find(values, simulator::automatic) != values.end();
  };
  require(o.topology != "none" || !(planned(o.schedules) || planned(o.layouts)),
          "--cluster none: auto chooses for a machine; give a file, or measure");
  const bool hybrid = std::ranges::any_of(o.schedules, options::has_placement);
  require(o.placement.empty() || hybrid, "--placement has an effect only with --schedule hybrid:HxC");
}

/// What does not go together.
void check_together(const SweepOptions& o) {
  const AttentionOptions& c = o.common;
  require(!c.tolerance || c.check != "none", "--tolerance has an effect only with --check");
  require(c.steps.empty() || c.local, "--steps has an effect only with --local");
  require(!c.embedding_seed || !c.data.empty(), "--vocabulary-embedding-seed has an effect only with --data");
  require(!o.resume || !o.json.empty(), "--resume goes on with the cases of --json FILE: name the file");
  if (!c.spin.empty()) {
    emulator::parse_spin(c.spin, "--spin");
    require(c.check == "none" && c.dump.empty() && !c.local,
            "--spin computes nothing: leave --check, --dump and --local out");
  }
  require(c.inputs == "random" || (c.data.empty() && !c.local && c.spin.empty()),
          "--inputs {} makes Q and K: leave --data, --local and --spin out", c.inputs);
  const bool changes_scores = c.soft_cap > 0 || c.sinks;
  require(!changes_scores || c.dump.empty(),
          "--dump tells readers of no soft cap and no sinks: leave --soft-cap and --sinks out");
  require(!c.sinks || !c.local,
          "--sinks join rows that are complete, --local measures calls before that: leave one out");
  if (c.sparsity.empty()) return;
  require(c.v_head_dim == 0 || c.v_head_dim == c.head_dim,
          "--sparsity takes rows of Q, K and V of one width: leave --v-head-dim {} out", c.v_head_dim);
  require(!changes_scores, "--sparsity takes neither --soft-cap nor --sinks: leave them out");
  sparsity::PatternOptions::parse(c.sparsity, "--sparsity");
  require(c.spin.empty() && !c.local && !c.compute_only,
          "--sparsity selects pairs from scores: leave --spin, --local and --compute-only out");
}

void check_local(const SweepOptions& o, std::size_t cases, int ranks) {
  require(ranks == 1, "--local measures one process, but there are {} ranks: leave mpirun out", ranks);
  require(o.common.dump.empty() && o.common.data.empty(),
          "--local measures random inputs and writes no tensors: leave --data and --dump out");
  require(cases == 1 && o.csv.empty() && o.html.empty(),
          "--local measures one case and writes --json alone: give one value each");
  const std::vector<std::string>& names = ring_step_names();
  for (const std::string& step : o.common.steps) {
    require(step == "all" ? o.common.steps.size() == 1 : std::ranges::find(names, step) != names.end(),
            "--steps {}: give all, or some of {}", step, fmt::join(names, ", "));
  }
}

}  // namespace

void check_options(const SweepOptions& o, int ranks) {
  check_values(o, ranks);
  attention::check_head_dim(o.common.head_dim, "--head-dim");
  if (o.common.v_head_dim > 0) attention::check_head_dim(o.common.v_head_dim, "--v-head-dim");
  attention::parse_kernel(o.common.kernel, "--kernel");
  comm::parse_transport(o.common.transport.name, "--transport");
  check_together(o);
  options::check_ranks_per_node(o.ranks_per_node, ranks);
  const std::vector<AttentionOptions> cases = cases_of(o, ranks);
  require(o.common.dump.empty() || cases.size() == 1,
          "--dump takes the tensors of a single case, but these options are {} cases", cases.size());
  for (const std::string& mask : o.masks) check_mask(mask, cases);
  if (o.common.local) check_local(o, cases.size(), ranks);
}

std::vector<AttentionOptions> cases_of(const SweepOptions& o, int ranks) {
  AttentionOptions first = o.common;
  first.backward = o.pass == "both";
  std::vector<AttentionOptions> cases{first};
  const auto vary = [&](const auto& values, const auto& set) {
    std::vector<AttentionOptions> all;
    for (const AttentionOptions& some : cases) {
      for (const auto& value : values) set(all.emplace_back(some), value);
    }
    cases = std::move(all);
  };
  const bool weak = !o.tokens_per_rank.empty();
  std::vector<int> overlaps;
  if (o.overlap != "off") overlaps.push_back(1);
  if (o.overlap != "on") overlaps.push_back(0);
  using Options = AttentionOptions;
  vary(o.dtypes, [](Options& c, const std::string& dtype) { c.dtype = dtype; });
  vary(o.heads, [](Options& c, int heads) { c.heads = heads; });
  vary(o.kv_heads, [](Options& c, int heads) { c.kv_heads = heads; });
  vary(weak ? o.tokens_per_rank : o.tokens, [](Options& c, std::int64_t tokens) { c.tokens = tokens; });
  vary(o.masks, [](Options& c, const std::string& mask) { c.mask = mask; });
  vary(o.ranks.empty() ? std::vector<int>{ranks} : o.ranks, [weak](Options& c, int some) {
    c.ranks = some;
    if (weak) c.tokens *= some;
  });
  vary(o.layouts, [](Options& c, const std::string& layout) { c.layout = layout; });
  vary(o.schedules, [&](Options& c, const std::string& schedule) {
    c.schedule = options::with_placement(schedule, o.placement);
  });
  vary(overlaps, [](Options& c, int overlap) { c.overlap = overlap != 0; });
  return cases;
}

}  // namespace annulus::bench
