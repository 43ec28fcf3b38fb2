#include "eval/evaluation/options.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include <annulus/training/run/device.hpp>

#include "common/output/output_json.hpp"
#include "eval/evaluation/model_folder.hpp"
#include "training/io/atomic.hpp"

namespace annulus::eval {

namespace {

// What stands for the model's own selection, and for none, in --sparsity.
constexpr const char *own_selection = "own", *no_selection = "dense";

}  // namespace

void add_evaluation_options(CLI::App& command, options::SharedOptions& options, EvaluationOptions& o,
                            const std::string& csv_rows) {
  command
      .add_option("model", o.models,
                  "Folders of runs (their newest checkpoints), of checkpoints, or in Hugging Face's format")
      ->required();
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
  command.add_option("--csv", o.csv, "CSV file to write: a row for each " + csv_rows);
  options.add(options::Shared::html, o.html);
}

void evaluate_models(const EvaluationOptions& o, const comm::MpiEnvironment& mpi,
                     const EvaluationCommand& command) {
  for (const std::string& file : {o.json, o.csv, o.html})
    if (mpi.rank() == 0 && !file.empty()) io::require_writable(file);
  for (const std::string& model : o.models) {
    const std::filesystem::path folder = weights_folder(model);
    const training::WeightSource source(folder, check_of(mpi.rank()));
    std::vector<std::vector<training::Config>> by_selection;
    for (const std::string& selection : o.sparsity) {
      EvaluationRequest base{.folder = folder, .overrides = o.overrides};
      if (selection != own_selection)
        base.overrides.push_back("attention.sparsity=" + (selection == no_selection ? "" : selection));
      std::vector<training::Config>& configs = by_selection.emplace_back();
      for (const EvaluationRequest& request : command.requests(base))
        configs.push_back(evaluation_config(source.model(), request));
    }
    const auto world = training::connect(mpi, by_selection.front().front());
    LazyWeights weights(source);
    for (const std::vector<training::Config>& configs : by_selection)
      command.evaluate({.name = model, .world = *world, .weights = weights, .configs = configs});
  }
}

void write_results(const EvaluationOptions& o, const EvaluationTexts& texts) {
  if (!o.json.empty()) app::write_output(o.json, texts.json());
  if (!o.csv.empty()) io::write_text_atomically(o.csv, texts.csv());
  if (!o.html.empty()) io::write_text_atomically(o.html, texts.html());
}

}  // namespace annulus::eval
