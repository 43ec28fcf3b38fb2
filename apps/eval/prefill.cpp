#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/run/trainer.hpp>

#include "base/splitmix.hpp"
#include "common/job_parts.hpp"
#include "common/output/output_json.hpp"
#include "eval/commands.hpp"
#include "eval/evaluation/config.hpp"
#include "eval/evaluation/model.hpp"
#include "eval/evaluation/model_folder.hpp"
#include "eval/evaluation/options.hpp"
#include "eval/prefill_report.hpp"
#include "options/checks.hpp"
#include "options/shared.hpp"
#include "training/io/logging.hpp"
#include "training/run/config/attention_inputs.hpp"
#include "training/run/config/resolve.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;

namespace {

struct PrefillArguments {
  std::string model, config;  // one of them
  std::vector<std::int64_t> lengths;
  std::vector<std::string> schedules = {""};  // as the configuration has it
  std::vector<int> ranks;
  int repetitions = 5;
  std::vector<std::string> overrides;
  ResultFiles files;
};

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(splitmix64(static_cast<std::uint64_t>(i)) %
                                            static_cast<std::uint64_t>(vocabulary)));
  return ids;
}

/// All cases, one after the other, on the ranks of the job.
class PrefillSweep {
 public:
  PrefillSweep(const PrefillArguments& o, const comm::MpiEnvironment& mpi) : o_(o) {
    if (!o.model.empty()) {
      folder_ = weights_folder(o.model);
      source_.emplace(folder_, check_of(mpi.rank()));
    }
    for (const std::int64_t length : o.lengths)
      for (const std::string& schedule : o.schedules) configs_.push_back(config_of(length, schedule));
    world_ = training::connect(mpi, configs_.front());
    for (const int ranks : o.ranks)
      require(ranks >= 1 && ranks <= world_->size(), "--ranks {}: give 1 to {}, the ranks of the job", ranks,
              world_->size());
  }

  std::vector<Prefill> run() {
    app::JobParts parts(*world_);
    const auto weights = load_weights(*world_, configs_.front(), source_ ? &*source_ : nullptr);
    std::vector<Prefill> all;
    const std::vector<int> every_rank = {world_->size()};
    for (const int ranks : o_.ranks.empty() ? every_rank : o_.ranks)
      for (const training::Config& config : configs_) {
        comm::Communicator& part = parts.of(ranks);
        if (parts.has(ranks)) all.push_back(measure(part, config, weights));
        parts.end(ranks);
      }
    return all;
  }

  /// What computes, for the log and the page; known behind run().
  const std::string& description() const { return description_; }

 private:
  training::Config config_of(std::int64_t tokens, const std::string& schedule) const {
    std::vector<std::string> overrides = o_.overrides;
    if (!schedule.empty()) overrides.push_back("attention.schedule=" + schedule);
    training::Config config =
        source_ ? evaluation_config(source_->model(),
                                    {.folder = folder_, .tokens = tokens, .overrides = overrides})
                : evaluation_config_of_file(o_.config, tokens, overrides);
    config.memory.lm_head_rows = 1;  // logits of one row are asked for
    return config;
  }

  Prefill measure(comm::Communicator& part, const training::Config& config,
                  const std::shared_ptr<const EvaluationWeights>& weights) {
    Prefill result{.ranks = part.size(),
                   .tokens = config.data.sequence_length,
                   .schedule = config.attention.schedule,
                   .layout = config.attention.layout};
    const auto told = [&] {
      return fmt::format("{} tokens, {} ranks, {}, {}", result.tokens, result.ranks, result.schedule,
                         result.layout);
    };
    try {  // plans need no messages: every rank finds the same
      training::SequencePlans(
          part.rank(),
          training::resolve_attention(config, part.topology(), training::read_attention_inputs(config)),
          training::SequencePlans::Passes::forward)
          .make();
    } catch (const Error& error) {
      result.unsupported = error.what();
      logging::info("{}: unsupported: {}", told(), result.unsupported);
      return result;
    }
    const auto model = make_evaluation_model(part, part, config, weights);
    result.schedule = model->plans().attention().schedule;
    result.layout = model->plans().problem().layout.to_string();
    description_ = fmt::format("{} parameters on {}", model->parameters(), model->device());
    const std::vector<std::int32_t> ids = random_ids(result.tokens, config.model.vocabulary);
    std::vector<float> logits(static_cast<std::size_t>(config.model.vocabulary));
    result.seconds =
        measurement::sample(part, {.repetitions = o_.repetitions, .seconds = 1e9}, [&](int iterations) {
          for (int i = 0; i < iterations; ++i) model->logits(ids, logits);
        });
    logging::info("{}: {:.4f} s to the first token", told(), result.seconds.median);
    return result;
  }

  const PrefillArguments& o_;
  fs::path folder_;
  std::optional<training::WeightSource> source_;
  std::vector<training::Config> configs_;
  std::unique_ptr<comm::Communicator> world_;
  std::string description_;
};

int run_prefill(PrefillArguments& o, const comm::MpiEnvironment& mpi) {
  require(o.model.empty() != o.config.empty(),
          "give a model, or with --config a configuration whose weights are drawn at random");
  for (const std::int64_t length : o.lengths) options::require_positive("--length", length);
  options::require_positive("--repetitions", o.repetitions);
  if (mpi.rank() == 0) o.files.require_writable();
  PrefillSweep sweep(o, mpi);
  const std::vector<Prefill> all = sweep.run();
  if (mpi.rank() != 0) return 0;
  const std::string of = o.model.empty() ? fmt::format("random weights of {}", o.config) : o.model;
  fmt::print("{}", to_table(all));
  nlohmann::json output = app::output_head("annulus-eval prefill");
  output["model"] = of;
  output["device"] = sweep.description();
  for (const Prefill& one : all) output["cases"].push_back(to_json(one));
  o.files.write(output, to_csv(all), to_html(all, fmt::format("{}, {}", of, sweep.description())));
  return 0;
}

}  // namespace

void add_prefill(CLI::App& app, Command& chosen) {
  auto [command, o] =
      add_command(app, chosen, "prefill",
                  "Time a whole model to the first token behind prompts of random ids, by length, "
                  "schedule and ranks",
                  run_prefill);
  options::SharedOptions options(command);
  command.add_option("model", o.model,
                     "Folder of a run (its newest checkpoint), of a checkpoint, or in Hugging Face's format");
  command.add_option("--config", o.config, "Configuration of a run: its model with random weights");
  command.add_option("--length", o.lengths, "Tokens of prompts; 128k is 131072")
      ->required()
      ->transform(options::in_units());
  command.add_option("--schedule", o.schedules,
                     "Schedules of attention; without it that of the configuration");
  command.add_option("--ranks", o.ranks, "Numbers of ranks, the first of the job; without it all");
  options.add(options::Shared::repetitions, o.repetitions);
  command
      .add_option(
          "--set", o.overrides,
          "section.key=value of the configuration (docs/formats/configuration.md), over what the model "
          "and its run, or --config, say; may be repeated")
      ->allow_extra_args(false);
  o.files.add_to(command, options, "case");
  command.footer(
      "Example:\n"
      "  mpirun -n 8 annulus-eval prefill --config data/llama-1b.toml --length 32k 128k 512k --schedule ring "
      "burst --ranks 2 4 8");
}

}  // namespace annulus::eval
