#include "plan/options.hpp"

#include <annulus/base/error.hpp>

#include "attention/sequence/document_list.hpp"
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

void add_options(CLI::App& app, PlanOptions& o) {
  SharedOptions shared(app);
  const auto group = [&app](const char* name) { app.option_defaults()->group(name); };
  group("The cluster");
  options::add_cluster(shared, o.cluster);
  group("The problem");
  options::add_problem(shared, o.problem);
  o.tokens = app.get_option("--tokens");
  app.add_option(
      "--documents", o.documents,
      "File with the lengths of the documents that fill the sequence, one a line, joined with the mask: "
      "shows who holds what, pairs and bytes of each rank, on balanced beside --layout; takes the "
      "place of --tokens");
  app.add_option("--pass", o.pass, "Pass: forward or backward");
  shared.add(Shared::sparsity_of_prediction, o.sparsity);
  app.add_option("--positions", o.positions,
                 "Only the first so many positions of the sequence take part, as where attention is computed "
                 "again for earlier queries; default: all")
      ->transform(options::in_units());
  group("The schedule");
  shared.add(Shared::schedule_or_auto, o.schedule);
  shared.add(Shared::layout_or_auto, o.layout);
  shared.add(Shared::placement, o.placement);
  app.add_option("--memory-limit", o.memory_limit,
                 "Bytes that a rank's exchange buffers may have with auto, as in 512M")
      ->transform(options::in_units());
  group("What is shown");
  app.add_flag("--compare", o.compare,
               "A table of all schedules, the fastest first; with --layout auto each on its best layout");
  shared.add(Shared::json, o.json, ": plan and totals (docs/planning.md)");
  app.add_flag("--no-steps", o.no_steps, "Leave the plan steps out of --json: many ranks have millions");
  shared.add(Shared::html, o.html, ": a timeline of ranks and links");
  app.add_flag("--validate", o.validate, "Prove the plan first");
  app.add_flag("--print", o.print, "Print the plan steps");
  app.add_option("--rank", o.rank, "Rank whose steps --print shows; default: all");
  app.footer(
      "Examples:\n"
      "  annulus-plan --ranks 64 --tokens 1M --heads 64 --kv-heads 8 --pass backward --compare\n"
      "  annulus-plan --ranks 16 --schedule auto --layout auto --cluster cluster.toml\n"
      "  annulus-plan --ranks 4 --documents lengths.txt --schedule all-gather\n"
      "  annulus-plan --ranks 8 --ranks-per-node 4 --schedule topology-burst --html timeline.html");
}

simulator::ChooseOptions PlanCase::choose_options() const {
  return {.memory_limit = memory_limit,
          .fixed_layouts = !sparsity.selected.all(),
          .selected = sparsity.selected,
          .schedule_field = "--schedule",
          .layout_field = "--layout"};
}

PlanCase make_case(const PlanOptions& o) {
  PlanCase c;
  c.cluster = options::cluster_of(o.cluster);
  c.rates = options::rates_text(o.cluster, c.cluster);
  require(o.placement.empty() || options::has_placement(o.schedule),
          "--placement has an effect only with --schedule hybrid:HxC, not with {}", o.schedule);
  c.schedule = options::with_placement(o.schedule, o.placement);
  c.pass = parse_pass(o.pass);
  c.shows_documents = !o.documents.empty();
  if (c.shows_documents) {
    const DocumentList list = read_document_list(o.documents, "--documents");
    require(o.tokens->count() == 0 || o.problem.tokens == list.tokens,
            "--tokens {} and --documents '{}' disagree, whose lengths sum to {}: leave --tokens out",
            o.problem.tokens, o.documents, list.tokens);
    c.problem = options::shape_of(o.problem);
    c.problem.mask = Mask::with_documents(o.problem.mask, list.tokens, list.starts, "--mask");
  } else {
    c.problem = options::problem_of(o.problem);
  }
  c.problem.positions = o.positions;
  c.problem.topology = options::topology_of(o.cluster, c.cluster);
  c.layout = o.layout;
  if (o.layout != simulator::automatic) c.problem.layout = Layout::parse(o.layout, "--layout");
  require(!o.memory_limit || c.is_open(),
          "--memory-limit has an effect only with --schedule auto or --layout auto");
  require(!o.memory_limit || *o.memory_limit >= 0, "--memory-limit is {}: give bytes, 0 or more",
          o.memory_limit.value_or(0));
  c.memory_limit = o.memory_limit;
  c.problem.check();
  c.sparsity = options::sparsity_of(o.sparsity, c.problem);
  require(!o.no_steps || !o.json.empty(), "--no-steps has an effect only with --json");
  c.no_steps = o.no_steps;
  require(!o.rank || o.print, "--rank has an effect only with --print");
  require(!o.rank || (*o.rank >= 0 && *o.rank < c.problem.ranks()), "--rank {}: there are ranks 0 to {}",
          o.rank.value_or(0), c.problem.ranks() - 1);
  return c;
}

}  // namespace annulus::planner
