#include "plan/options.hpp"

#include <annulus/base/error.hpp>

#include "options/checks.hpp"

namespace annulus::planner {

using options::Shared;
using options::SharedOptions;

namespace {

plan::Pass parse_pass(const std::string& text) {
  for (const plan::Pass pass : {plan::Pass::forward, plan::Pass::backward}) {
    if (text == plan::name_of(pass)) return pass;
  }
  fail("--pass {}: there are forward and backward", text);
}

}  // namespace

void add_options(CLI::App& app, Options& o) {
  SharedOptions shared(app);
  options::add_cluster(shared, o.cluster);
  options::add_problem(shared, o.problem);
  shared.add(Shared::layout_or_auto, o.layout);
  shared.add(Shared::schedule_or_auto, o.schedule);
  shared.add(Shared::placement, o.placement);
  app.add_option("--pass", o.pass, "Pass: forward or backward");
  app.add_option("--positions", o.positions,
                 "Only the first so many positions of the sequence take part, as where attention is computed "
                 "again for earlier queries; default: all");
  app.add_option("--memory-limit", o.memory_limit, "Bytes that a rank's exchange buffers may have with auto");
  app.add_flag("--compare", o.compare,
               "A table of all schedules, the fastest first; with --layout auto each on its best layout");
  shared.add(Shared::json, o.json, ": plan and totals (docs/planning.md)");
  shared.add(Shared::html, o.html, ": a timeline of ranks and links");
  app.add_flag("--validate", o.validate, "Prove the plan first");
  app.add_flag("--print", o.print, "Print the plan steps");
  app.add_option("--rank", o.rank, "Rank whose steps --print shows; default: all");
}

Case make_case(const Options& o) {
  Case c;
  c.cluster = options::cluster_of(o.cluster);
  require(o.placement.empty() || options::has_placement(o.schedule),
          "--placement has an effect only with --schedule hybrid:HxC, not with {}", o.schedule);
  c.schedule = options::with_placement(o.schedule, o.placement);
  c.pass = parse_pass(o.pass);
  c.problem = options::problem_of(o.problem);
  c.problem.positions = o.positions;
  c.problem.topology = options::topology_of(o.cluster, c.cluster);
  c.layout = o.layout;
  if (o.layout != simulate::automatic) c.problem.layout = Layout::parse(o.layout, "--layout");
  require(!o.memory_limit || c.is_open(),
          "--memory-limit has an effect only with --schedule auto or --layout auto");
  c.memory_limit = o.memory_limit;
  c.problem.check();
  require(!o.rank || o.print, "--rank has an effect only with --print");
  require(!o.rank || (*o.rank >= 0 && *o.rank < c.problem.ranks()), "--rank {}: there are ranks 0 to {}",
          o.rank.value_or(0), c.problem.ranks() - 1);
  return c;
}

}  // namespace annulus::planner
