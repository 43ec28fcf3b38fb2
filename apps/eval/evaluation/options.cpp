#include "eval/evaluation/options.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include <annulus/training/run/trainer.hpp>

#include "common/output/output_json.hpp"
#include "eval/evaluation/model_folder.hpp"
#include "training/io/atomic.hpp"

namespace annulus::eval {

namespace {

// What stands for the model's own selection, and for none, in --sparsity.
constexpr const char *own_selection = "own", *no_selection = "dense";

}  // namespace

void ResultFiles::add_to(CLI::App& command, options::SharedOptions& options, const std::string& csv_rows) {
  options.add(options::Shared::json, json);
  command.add_option("--csv", csv, "CSV file to write: a row for each " + csv_rows);
  options.add(options::Shared::html, html);
}

void ResultFiles::require_writable() const {
  for (const std::string& file : {json, csv, html})
    if (!file.empty()) io::require_writable(file);
}

void ResultFiles::write(const nlohmann::json& as_json, const std::string& as_csv,
                        const std::string& as_html) const {
  app::write_output(json, as_json);
  if (!csv.empty()) io::write_text_atomically(csv, as_csv);
  if (!html.empty()) io::write_text_atomically(html, as_html);
}

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
  o.files.add_to(command, options, csv_rows);
}

void evaluate_models(const EvaluationOptions& o, const comm::MpiEnvironment& mpi,
                     const std::vector<EvaluationRequest>& requests,
                     const std::function<void(const EvaluatedModel&)>& evaluate) {
  if (mpi.rank() == 0) o.files.require_writable();
  for (const std::string& model : o.models) {
    const std::filesystem::path folder = weights_folder(model);
    const training::WeightSource source(folder, check_of(mpi.rank()));
    std::vector<std::vector<training::Config>> by_selection;
    for (const std::string& selection : o.sparsity) {
      std::vector<training::Config>& configs = by_selection.emplace_back();
      for (EvaluationRequest request : requests) {
        request.folder = folder;
        request.overrides = o.overrides;
        if (selection != own_selection)
          request.overrides.push_back("attention.sparsity=" + (selection == no_selection ? "" : selection));
        configs.push_back(evaluation_config(source.model(), request));
      }
    }
    const auto world = training::connect(mpi, by_selection.front().front());
    LazyWeights weights(source);
    for (const std::vector<training::Config>& configs : by_selection)
      evaluate({.name = model, .world = *world, .weights = weights, .configs = configs});
  }
}

}  // namespace annulus::eval
