#include "plan/options.hpp"

#include <annulus/base/error.hpp>

#include "attention/sequence/document_list.hpp"
#include "base/parse_number.hpp"
#include "options/checks.hpp"
#include "plan/selection_file.hpp"

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

void set_selected(const std::string& sparsity, PlanCase& c) {
  if (sparsity.empty()) return;
  if (const auto left_out = parse_number<double>(sparsity)) {
    require(
        *left_out >= 0 && *left_out < 1,
        "--sparsity {}: give the share of the pairs that is left out, from 0 to below 1, for instance 0.95",
        sparsity);
    c.selected.density = 1 - *left_out;
    return;
  }
  require(c.problem.mask.to_string() == "causal",
          "--sparsity {}: selections are made of the mask causal, not of {}: use causal", sparsity,
          c.problem.mask.to_string());
  const RecordedSelection selection = read_selection(sparsity, "--sparsity");
  c.blocks = std::make_shared<simulator::SelectedBlocks>(selection.blocks);
  require(c.blocks->tokens() == c.problem.mask.tokens(),
          "--sparsity {}: the selection is of {} tokens: set --tokens {}", sparsity, c.blocks->tokens(),
          c.blocks->tokens());
  require(c.problem.heads % c.blocks->lists() == 0,
          "--sparsity {}: {} selections of a sequence cannot be those of {} heads: set --heads", sparsity,
          c.blocks->lists(), c.problem.heads);
  c.selected = c.blocks->selected();
  c.columns = std::int64_t{c.problem.batch} * c.blocks->lists() * selection.most_columns;
}

}  // namespace

void add_options(CLI::App& app, PlanOptions& o) {
  SharedOptions shared(app);
  const auto group = [&app](const char* name) { app.option_defaults()->group(name); };
  group("The cluster");
  options::add_cluster(shared, o.cluster);
  group("The problem");
  options::add_problem(shared, o.problem);
  app.add_option(
      "--documents", o.documents,
      "File with the lengths of the documents that fill the sequence, one a line, joined with the mask: "
      "shows who holds what, pairs and bytes of each rank, on balanced beside --layout");
  app.add_option("--pass", o.pass, "Pass: forward or backward");
  app.add_option(
      "--sparsity", o.sparsity,
      "Share of the pairs that dynamic sparse attention leaves out, as 0.95, or a tensor dump with a "
      "recorded selection, as dump.h5, or dump.h5:layers.3 of annulus-train (docs/sparsity.md)");
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
          .fixed_layouts = !selected.all(),
          .selected = selected,
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
  c.memory_limit = o.memory_limit;
  c.problem.check();
  set_selected(o.sparsity, c);
  require(!o.rank || o.print, "--rank has an effect only with --print");
  require(!o.rank || (*o.rank >= 0 && *o.rank < c.problem.ranks()), "--rank {}: there are ranks 0 to {}",
          o.rank.value_or(0), c.problem.ranks() - 1);
  return c;
}

}  // namespace annulus::planner
