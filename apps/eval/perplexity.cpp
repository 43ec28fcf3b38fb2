#include "eval/perplexity.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <Kokkos_Timer.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/training/run/device.hpp>

#include "base/units.hpp"
#include "common/output_json.hpp"
#include "eval/commands.hpp"
#include "eval/evaluation_config.hpp"
#include "eval/evaluation_model.hpp"
#include "eval/model_folder.hpp"
#include "options/checks.hpp"
#include "options/shared.hpp"
#include "training/data/windows.hpp"
#include "training/io/atomic.hpp"
#include "training/run/groups.hpp"
#include "training/run/run_data.hpp"
#include "training/run/state/initial_weights/model_from.hpp"
#include "training/run/together.hpp"
#include "training/run/validation.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;

namespace {

/// Tells in the log, from time to time, how many rounds of windows are done.
class Progress {
 public:
  explicit Progress(std::int64_t rounds) : rounds_(rounds) {}

  void next() {
    constexpr double every = 10;  // seconds
    const double now = timer_.seconds();
    if (done_ > 0 && now - told_ >= every) {
      told_ = now;
      spdlog::info("{} of {} passes, {} left", done_, rounds_,
                   duration_text(now / double(done_) * double(rounds_ - done_)));
    }
    ++done_;
  }

 private:
  const Kokkos::Timer timer_;
  std::int64_t rounds_, done_ = 0;
  double told_ = 0;
};

}  // namespace

Perplexity measure_perplexity(comm::Communicator& world, const training::Config& given, LazyWeights& weights,
                              const WindowChoices& choices) {
  const auto dataset = training::open_data(world, given);
  const training::Config config = training::complete(given, *dataset);
  training::together(world, [&] {
    if (world.rank() == 0)
      require_tokenizer(weights.source(), config.model_from, dataset->tokenizer(), "data.shards");
  });
  const std::int64_t tokens = dataset->sequence_tokens(),
                     stride = choices.stride > 0 ? choices.stride : tokens;
  require(stride <= tokens, "--stride {} is more than the {} tokens of a window: give 1 to {}", stride,
          tokens, tokens);
  const auto context = training::context_group(world, config.parallel);
  const training::Validation validation(world, *context, {{"data.shards", dataset, stride}}, choices.windows,
                                        {.first = 16, .factor = 2});
  const auto model = make_evaluation_model(world, *context, config, weights.get(world, config),
                                           training::typical_documents(*dataset, config));
  if (world.rank() == 0) {
    const training::ModelNotes notes = training::notes_on_model(weights.source().model(), config);
    for (const std::string& note : notes.info) spdlog::info("{}", note);
    for (const std::string& note : notes.warnings) spdlog::warn("{}", note);
  }
  const std::int64_t windows = validation.sequences_of(validation.sets().front()),
                     of_round = world.size() / context->size() * model->sequences();
  spdlog::info("{} windows of {} tokens, {} ranks, on {}", windows, tokens, world.size(),
               model->description());
  Progress progress(ceil_divide(windows, of_round));
  const Kokkos::Timer timer;
  const auto losses = validation.run(*model, [&] {
    progress.next();
    return false;
  });
  const training::ResolvedAttention& attention = model->plans().attention();
  return {.model = config.model_from,
          .attention = config.attention.sparsity,
          .mask = config.attention.mask,
          .schedule = attention.schedule,
          .layout = attention.problem.layout.to_string(),
          .dtype = config.train.dtype,
          .device = model->description(),
          .step = weights.source().step(),
          .tokens = tokens,
          .stride = stride,
          .windows = windows,
          .ranks = world.size(),
          .context = context->size(),
          .loss = losses->front(),
          .seconds = timer.seconds()};
}

namespace {

// What stands for the model's own selection, and for none, in --sparsity.
constexpr const char *own_selection = "own", *no_selection = "dense";

struct PerplexityArguments {
  std::vector<std::string> models, shards, overrides;
  std::vector<std::string> sparsity = {own_selection};
  std::int64_t length = 0;  // 0: that of the model
  WindowChoices windows;
  std::string json, csv, html;
};

void write(const PerplexityArguments& o, const std::vector<Perplexity>& all) {
  if (!o.json.empty()) {
    nlohmann::json output = app::output_head("annulus-eval perplexity");
    output["shards"] = o.shards;
    for (const Perplexity& one : all) output["evaluations"].push_back(to_json(one));
    app::write_output(o.json, std::move(output));
  }
  if (!o.csv.empty()) io::write_text_atomically(o.csv, to_csv(all));
  if (!o.html.empty())
    io::write_text_atomically(o.html, to_html(all, fmt::format("of {}", fmt::join(o.shards, ", "))));
}

int run_perplexity(PerplexityArguments& o, const comm::MpiEnvironment& mpi) {
  for (const auto& [name, value] :
       {std::pair("--length", o.length), {"--stride", o.windows.stride}, {"--windows", o.windows.windows}})
    if (value != 0) options::require_positive(name, value);
  for (const std::string& file : {o.json, o.csv, o.html})
    if (mpi.rank() == 0 && !file.empty()) io::require_writable(file);
  std::vector<Perplexity> all;
  for (const std::string& model : o.models) {
    const fs::path folder = weights_folder(model);
    const training::WeightSource source(folder, check_of(mpi.rank()));
    std::vector<training::Config> configs;
    for (const std::string& selection : o.sparsity) {
      EvaluationRequest request{
          .folder = folder, .tokens = o.length, .shards = o.shards, .overrides = o.overrides};
      if (selection != own_selection)
        request.overrides.push_back("attention.sparsity=" + (selection == no_selection ? "" : selection));
      configs.push_back(evaluation_config(source.model(), request));
    }
    const auto world = training::connect(mpi, configs.front());
    LazyWeights weights(source);
    for (const training::Config& config : configs) {
      all.push_back(measure_perplexity(*world, config, weights, o.windows));
      all.back().model = model;
    }
  }
  if (mpi.rank() != 0) return 0;
  fmt::print("{}", to_table(all));
  write(o, all);
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, Command& chosen) {
  auto [command, o] = add_command(app, chosen, "perplexity",
                                  "Loss and perplexity of models on token shards, by how many tokens of the "
                                  "document come before; over any number of ranks",
                                  run_perplexity);
  options::SharedOptions options(command);
  command
      .add_option("model", o.models,
                  "Folders of runs (their newest checkpoints), of checkpoints, or in Hugging Face's format")
      ->required();
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
  command
      .add_option("--sparsity", o.sparsity,
                  "Selection to evaluate with, instead of that of the model's run: own, dense, or as "
                  "attention.sparsity has it; may be repeated, which evaluates each model by each")
      ->allow_extra_args(false);
  command
      .add_option(
          "--set", o.overrides,
          "section.key=value of the configuration (docs/formats/configuration.md), over what the model "
          "and its run say; may be repeated")
      ->allow_extra_args(false);
  options.add(options::Shared::json, o.json);
  command.add_option("--csv", o.csv, "CSV file to write: a row for each model and range of positions");
  options.add(options::Shared::html, o.html);
  command.footer(
      "Example:\n"
      "  annulus-eval perplexity runs/mine --shards shards/books --length 32k --stride 16k --html loss.html");
}

}  // namespace annulus::eval
