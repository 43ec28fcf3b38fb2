#include "bench/attention/cases/case.hpp"

#include <array>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/choose.hpp>

#include "bench/attention/check/check.hpp"
#include "options/problem.hpp"
#include "training/data/dataset.hpp"

namespace annulus::bench {

namespace {

using plan::Pass;

Mask make_mask(const AttentionOptions& o) {
  const bool documents_of_data = takes_documents_of_data(o);
  require(!documents_of_data || !o.data.empty(),
          "--mask '{}': without --data the term 'documents' needs start offsets, as in documents:0,100,250",
          o.mask);
  if (o.data.empty()) return Mask::parse(o.mask, o.tokens, "--mask");
  const data::TokenDataset dataset(o.data, o.tokens);
  require(dataset.sequences() >= o.batch,
          "--data holds {} sequences of {} tokens, but --batch is {}: give more data", dataset.sequences(),
          o.tokens, o.batch);
  require(!documents_of_data || o.batch == 1,
          "--batch {} with the document boundaries of --data: each sequence has its own; use --batch 1",
          o.batch);
  if (!documents_of_data) return Mask::parse(o.mask, o.tokens, "--mask");
  return Mask::with_documents(o.mask, o.tokens, dataset.read(0, PositionMap{}).document_starts, "--mask");
}

}  // namespace

bool takes_documents_of_data(const AttentionOptions& o) {
  return ("+" + o.mask + "+").find("+documents+") != std::string::npos;
}

BenchCase make_case(const AttentionOptions& o, const Topology& topology, const simulator::Cluster& cluster) {
  BenchCase c{.options = o, .asked_schedule = o.schedule, .asked_layout = o.layout};
  plan::Problem& problem = c.problem;
  problem = options::shape_of(o);
  problem.topology = topology;
  problem.mask = make_mask(o);
  if (o.schedule == simulator::automatic || o.layout == simulator::automatic) {
    constexpr std::array<Pass, 2> passes = {Pass::forward, Pass::backward};
    const simulator::ScheduleChoice choice = simulator::choose(
        problem, o.schedule, o.layout, std::span(passes).first(o.backward ? 2 : 1), cluster,
        {.fixed_layouts = !o.sparsity.empty(), .schedule_field = "--schedule", .layout_field = "--layout"});
    c.options.schedule = choice.schedule;
    c.options.layout = choice.layout.to_string();
  }
  problem.layout = Layout::parse(c.options.layout, "--layout");
  problem = plan::arranged_for(c.options.schedule, std::move(problem), "--schedule");
  c.forward = plan::make_plan(c.options.schedule, problem, Pass::forward, "--schedule");
  c.backward = plan::make_plan(c.options.schedule, problem, Pass::backward, "--schedule");
  if (o.check == "reference") require_checkable(problem);
  if (o.sparsity.empty()) return c;
  c.sparsity = sparsity::PatternOptions::parse(o.sparsity, "--sparsity");
  c.sparsity->check(o.tokens, "--sparsity", !problem.mask.document_starts().empty());
  return c;
}

InputSource inputs_of(const BenchCase& c, int rank) {
  const AttentionOptions& o = c.options;
  InputSource inputs{.seed = o.seed,
                     .positions = c.problem.shard(rank),
                     .embedding_seed = o.embedding_seed.value_or(o.seed),
                     .vertical_slash = o.inputs == "vertical-slash"};
  if (o.data.empty()) return inputs;
  const data::TokenDataset dataset(o.data, o.tokens);
  for (int b = 0; b < o.batch; ++b) inputs.tokens.push_back(dataset.read(b, inputs.positions).tokens);
  return inputs;
}

}  // namespace annulus::bench
