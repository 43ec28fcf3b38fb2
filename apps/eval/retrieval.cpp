#include "eval/retrieval.hpp"

#include <fmt/format.h>

#include <filesystem>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/run/trainer.hpp>

#include "common/output/output_json.hpp"
#include "eval/commands.hpp"
#include "eval/evaluation/config.hpp"
#include "eval/evaluation/evaluation.hpp"
#include "eval/evaluation/options.hpp"
#include "options/shared.hpp"
#include "training/io/logging.hpp"
#include "training/run/passes/shared_evaluation.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;

namespace {

/// Sums over the tokens of a sample's answer, as ranks add them up.
struct AnswerSums {
  double& wrong;  // tokens that are not the greedy choice
  double& loss;
  double& tokens;
};
constexpr std::int64_t sums_of_answer = 3;

AnswerSums sums_at(std::vector<double>& all, std::int64_t index) {
  double* const of = all.data() + index * sums_of_answer;
  return {of[0], of[1], of[2]};
}

}  // namespace

void answer_samples(comm::Communicator& world, const training::Config& config, LazyWeights& weights,
                    const SampleShard& shard, Retrieval& retrieval) {
  require(shard.loss_mask_checksum.has_value(),
          "'{}' does not say which tokens are answers: make samples without --all-tokens-count", shard.file);
  require(config.data.sequence_length == shard.tokens,
          "data.sequence_length = {} does not fit samples of {} tokens: leave the key out",
          config.data.sequence_length, shard.tokens);
  require_causal(config);
  const Evaluation opened = open_evaluation(world, config, weights, "--samples");
  const auto& shards = opened.dataset->shards();
  require(shards.size() == 1 && shards.front().checksum == shard.checksum &&
              shards.front().loss_mask_checksum == shard.loss_mask_checksum,
          "data.shards holds other samples than '{}': leave the key out, and the folder of samples alone",
          shard.file);
  const std::int64_t count = std::ssize(shard.samples);
  const std::int64_t of_pass = world.size() / opened.context->size() * opened.model->sequences();
  logging::info("{} samples of {} tokens, {} ranks, on {}", count, shard.tokens, world.size(),
                opened.model->description());
  PassProgress progress(ceil_divide(count, of_pass));
  std::vector<double> sums(static_cast<std::size_t>(count * sums_of_answer));
  training::evaluate_together(
      {.world = world,
       .context = *opened.context,
       .evaluator = *opened.model,
       .sequences = count,
       .read = [&](std::int64_t index, const PositionMap& rows) { return opened.dataset->read(index, rows); },
       .use =
           [&](std::int64_t index, const data::Sequence& sequence, std::span<const double> losses,
               std::span<const std::uint8_t> greedy) {
             const AnswerSums of = sums_at(sums, index);
             for (std::size_t row = 0; row < losses.size(); ++row) {
               if (sequence.targets[row] == data::ignored_target) continue;
               of.wrong += greedy[row] == 0 ? 1 : 0;
               of.loss += losses[row];
               of.tokens += 1;
             }
           },
       .stopped =
           [&] {
             progress.next();
             return false;
           },
       .asks_greedy = true});
  world.all_reduce(HostExec(), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
  for (std::int64_t i = 0; i < count; ++i) {
    const AnswerSums of = sums_at(sums, i);
    require(of.tokens > 0, "'{}': sample {} has no answer: make the samples again", shard.file, i);
    retrieval.samples.push_back({.tokens = shard.tokens,
                                 .facts = shard.samples[static_cast<std::size_t>(i)],
                                 .correct = of.wrong == 0,
                                 .loss = of.loss,
                                 .answer_tokens = static_cast<std::int64_t>(of.tokens)});
  }
  retrieval.attention = opened.config.attention.sparsity;
  retrieval.mask = opened.config.attention.mask;
  retrieval.dtype = opened.config.train.dtype;
  retrieval.device = opened.model->device();
  retrieval.step = weights.source().step();
  retrieval.ranks = world.size();
  retrieval.seconds += progress.seconds();
}

namespace {

struct RetrievalArguments {
  EvaluationOptions evaluation;
  fs::path samples;
};

int run_retrieval(RetrievalArguments& o, const comm::MpiEnvironment& mpi) {
  const SampleSet set = read_samples(o.samples);
  std::vector<Retrieval> all;
  std::vector<EvaluationRequest> by_length;
  for (const SampleShard& shard : set.shards)
    by_length.push_back({.tokens = shard.tokens, .shards = {(o.samples / shard.file).string()}});
  evaluate_models(o.evaluation, mpi, by_length, [&](const EvaluatedModel& model) {
    Retrieval& one = all.emplace_back();
    one.model = model.name;
    for (std::size_t i = 0; i < set.shards.size(); ++i)
      answer_samples(model.world, model.configs[i], model.weights, set.shards[i], one);
  });
  if (mpi.rank() != 0) return 0;
  fmt::print("{}", to_table(all));
  nlohmann::json output = app::output_head("annulus-eval retrieval");
  output["samples"] = o.samples.string();
  for (const Retrieval& one : all) output["evaluations"].push_back(to_json(one));
  o.evaluation.files.write(output, to_csv(all),
                           to_html(all, fmt::format("samples of {}", o.samples.string())));
  return 0;
}

}  // namespace

void add_retrieval(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(app, chosen, "retrieval",
                                  "Share of samples that models answer exactly by greedy decoding, by kind, "
                                  "length and depth; over any number of ranks",
                                  run_retrieval);
  options::SharedOptions options(command);
  command.add_option("--samples", o.samples, "Folder that annulus-eval make has made")->required();
  add_evaluation_options(command, options, o.evaluation, "model, kind, length and depth");
  command.footer(
      "Example:\n"
      "  annulus-eval retrieval runs/mine --samples samples --html retrieval.html");
}

}  // namespace annulus::eval
