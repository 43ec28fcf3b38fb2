#include "plan/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <annulus/base/error.hpp>
#include <annulus/plan/schedules.hpp>

#include "common/checks.hpp"
#include "common/topology.hpp"

namespace annulus::planner {
namespace {

plan::Pass parse_pass(const std::string& text) {
  for (const plan::Pass pass : {plan::Pass::forward, plan::Pass::backward}) {
    if (text == plan::name_of(pass)) return pass;
  }
  fail("--pass {}: there are forward and backward", text);
}

}  // namespace

void add_options(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", o.ranks, "Ranks; 0: those of the cluster file, else 8");
  app.add_option("--ranks-per-node", o.ranks_per_node,
                 "Of them on one node; 0: as the cluster file says, else 8");
  app.add_option("--tokens", o.tokens, "Length of the whole sequence");
  app.add_option("--heads", o.heads, "Query heads");
  app.add_option("--kv-heads", o.kv_heads, "Key and value heads; 0: as many as query heads");
  app.add_option("--head-dim", o.head_dim, "Width of a head");
  app.add_option("--batch", o.batch, "Sequences");
  app.add_option("--dtype", o.dtype, "Storage of Q, K, V and dO: f32, bf16 or f16");
  app.add_option("--layout", o.layout, "contiguous, zigzag, striped, block-striped:B, or auto");
  app.add_option("--mask", o.mask,
                 "full, causal, window:L,R, dilated:W,D, documents:0,A,B,… or blocks:SIZE,FILE; "
                 "joined by + (docs/masks.md)");
  app.add_option("--schedule", o.schedule,
                 fmt::format("{}, or auto", fmt::join(plan::schedule_names(), ", ")));
  app.add_option("--placement", o.placement,
                 "Of hybrid:HxC, instead of its last word: head-first keeps the exchange of heads inside a "
                 "node where it fits, context-first the ring");
  app.add_option("--pass", o.pass, "forward or backward");
  app.add_option("--cluster", o.topology,
                 "Links and kernels of the cluster (docs/formats/cluster.md); without it: 8-GPU nodes of the "
                 "H100's class");
  app.add_option("--memory-limit", o.memory_limit,
                 "Of auto: the most bytes that a rank's exchange buffers may have");
  app.add_flag("--compare", o.compare,
               "A table of all schedules, the fastest first; with --layout auto each on its best layout");
  app.add_option("--json", o.json, "Write plan and totals to this file (docs/planning.md)");
  app.add_option("--html", o.html, "Write a timeline of ranks and links to this file");
  app.add_flag("--validate", o.validate, "Prove the plan first");
  app.add_flag("--print", o.print, "Print the steps");
  app.add_option("--rank", o.rank, "Of --print: this rank alone");
}

Case make_case(const Options& o) {
  app::require_positive("--tokens", o.tokens);
  app::require_positive("--head-dim", o.head_dim);
  app::require_positive("--batch", o.batch);
  const int kv_heads = app::checked_kv_heads(o.heads, o.kv_heads);
  if (o.schedule != simulate::automatic) plan::check_schedule(o.schedule, "--schedule");

  Case c;
  c.cluster = o.topology.empty() ? simulate::default_cluster() : simulate::read_cluster(o.topology);
  require(o.placement.empty() || app::has_placement(o.schedule),
          "--placement is of use with --schedule hybrid:HxC, not with {}", o.schedule);
  c.schedule = app::with_placement(o.schedule, o.placement);
  c.pass = parse_pass(o.pass);
  c.problem.topology = app::topology_of(o.ranks, o.ranks_per_node, c.cluster.topology, o.topology);
  c.layout = o.layout;
  if (o.layout != simulate::automatic) c.problem.layout = Layout::parse(o.layout, "--layout");
  require(!o.memory_limit || c.is_open(), "--memory-limit is of use with --schedule auto or --layout auto");
  c.memory_limit = o.memory_limit;
  c.problem.mask = Mask::parse(o.mask, o.tokens, "--mask");
  c.problem.heads = o.heads;
  c.problem.kv_heads = kv_heads;
  c.problem.head_dim = o.head_dim;
  c.problem.batch = o.batch;
  c.problem.activation = app::parse_storage(o.dtype);
  c.problem.check();
  require(!o.rank || o.print, "--rank is of use with --print only");
  require(!o.rank || (*o.rank >= 0 && *o.rank < c.problem.ranks()), "--rank {}: there are ranks 0 to {}",
          o.rank.value_or(0), c.problem.ranks() - 1);
  return c;
}

}  // namespace annulus::planner
