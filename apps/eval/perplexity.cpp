#include "eval/perplexity.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/training/run/trainer.hpp>

#include "common/output/output_json.hpp"
#include "eval/commands.hpp"
#include "eval/evaluation/config.hpp"
#include "eval/evaluation/evaluation.hpp"
#include "eval/evaluation/options.hpp"
#include "options/checks.hpp"
#include "options/shared.hpp"
#include "training/io/logging.hpp"
#include "training/run/validation.hpp"

namespace annulus::eval {

Perplexity measure_perplexity(comm::Communicator& world, const training::Config& given, LazyWeights& weights,
                              const WindowChoices& choices) {
  const std::int64_t tokens = given.data.sequence_length,
                     stride = choices.stride > 0 ? choices.stride : tokens;
  require(stride <= tokens, "--stride {} is more than the {} tokens of a window: give 1 to {}", stride,
          tokens, tokens);
  const Evaluation opened = open_evaluation(world, given, weights, "data.shards");
  const training::Config& config = opened.config;
  EvaluationModel& model = *opened.model;
  const training::Validation validation(world, *opened.context, {{"data.shards", opened.dataset, stride}},
                                        choices.windows, {.first = 16, .factor = 2});
  const std::int64_t windows = validation.sequences_of(validation.sets().front()),
                     of_pass = world.size() / opened.context->size() * model.sequences();
  logging::info("{} windows of {} tokens, {} ranks, on {}", windows, tokens, world.size(),
                model.description());
  PassProgress progress(ceil_divide(windows, of_pass));
  const auto losses = validation.run(model, [&] {
    progress.next();
    return false;
  });
  const training::ResolvedAttention& attention = model.plans().attention();
  return {.model = config.model_from,
          .attention = config.attention.sparsity,
          .mask = config.attention.mask,
          .schedule = attention.schedule,
          .layout = attention.problem.layout.to_string(),
          .dtype = config.train.dtype,
          .device = model.device(),
          .step = weights.source().step(),
          .tokens = tokens,
          .stride = stride,
          .windows = windows,
          .ranks = world.size(),
          .context = opened.context->size(),
          .loss = losses->front(),
          .seconds = progress.seconds()};
}

namespace {

struct PerplexityArguments {
  EvaluationOptions evaluation;
  std::vector<std::string> shards;
  std::int64_t length = 0;  // 0: that of the model
  WindowChoices windows;
};

int run_perplexity(PerplexityArguments& o, const comm::MpiEnvironment& mpi) {
  for (const auto& [name, value] :
       {std::pair("--length", o.length), {"--stride", o.windows.stride}, {"--windows", o.windows.windows}})
    if (value != 0) {
      require(value > 0, "{} is {}: give 1 or more, or 0, which --help explains", name, value);
      options::require_positive(name, value);
    }
  std::vector<Perplexity> all;
  evaluate_models(
      o.evaluation, mpi, {{.tokens = o.length, .shards = o.shards}}, [&](const EvaluatedModel& model) {
        all.push_back(measure_perplexity(model.world, model.configs.front(), model.weights, o.windows));
        all.back().model = model.name;
      });
  if (mpi.rank() != 0) return 0;
  fmt::print("{}", to_table(all));
  nlohmann::json output = app::output_head("annulus-eval perplexity");
  output["shards"] = o.shards;
  for (const Perplexity& one : all) output["evaluations"].push_back(to_json(one));
  o.evaluation.files.write(output, to_csv(all),
                           to_html(all, fmt::format("of {}", fmt::join(o.shards, ", "))));
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(app, chosen, "perplexity",
                                  "Loss and perplexity of models on token shards, by how many tokens of the "
                                  "document come before; over any number of ranks",
                                  run_perplexity);
  options::SharedOptions options(command);
  command.add_option("--shards", o.shards, "Token shards, or folders of them; may be repeated")
      ->required()
      ->allow_extra_args(false);
  command
      .add_option(
          "--length", o.length,
          "Tokens of a window, also more than the model was trained on; 128k is 131072. 0: the longest "
          "that the model is meant for")
      ->transform(options::in_units());
  command
      .add_option(
          "--stride", o.windows.stride,
          "Tokens from one window to the next: each scores its last so many tokens, which have at least "
          "--length less --stride before them. 0: --length, windows side by side")
      ->transform(options::in_units());
  command.add_option("--windows", o.windows.windows, "At most so many windows, evenly spread; 0: all");
  add_evaluation_options(command, options, o.evaluation, "model and range of positions");
  command.footer(
      "Example:\n"
      "  annulus-eval perplexity runs/mine --shards shards/books --length 32k --stride 16k --html loss.html");
}

}  // namespace annulus::eval
