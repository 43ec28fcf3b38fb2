#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include <annulus/attention/comm/mpi.hpp>

#include "eval/evaluation/config.hpp"
#include "eval/evaluation/model.hpp"
#include "options/shared.hpp"

/// What commands that evaluate models have in common.
namespace annulus::eval {

/// Files of results; empty: none.
struct ResultFiles {
  std::string json, csv, html;

  /// Adds an option for each; `csv_rows` tells what has a row of the CSV file.
  void add_to(CLI::App& command, options::SharedOptions& options, const std::string& csv_rows);
  /// Throws Error where one cannot be written. For rank 0.
  void require_writable() const;
  /// Writes those that are asked for.
  void write(const nlohmann::json& as_json, const std::string& as_csv, const std::string& as_html) const;
};

/// Which models are evaluated, by which attention, and where results go.
struct EvaluationOptions {
  std::vector<std::string> models, overrides;
  std::vector<std::string> sparsity = {"own"};
  ResultFiles files;
};

/// Adds them to a command; `csv_rows` tells what has a row of the CSV file.
void add_evaluation_options(CLI::App& command, options::SharedOptions& options, EvaluationOptions& o,
                            const std::string& csv_rows);

/// A model by one way of attention, on all ranks.
struct EvaluatedModel {
  const std::string& name;  ///< as the user has it
  comm::Communicator& world;
  LazyWeights& weights;
  const std::vector<training::Config>& configs;  ///< of each request
};

/// Evaluates each model by each attention: calls `evaluate` with the configurations for `requests`, one for
/// each set of sequences, whose folder and overrides are filled in. Throws Error first where results cannot
/// be written, and for a model where one of its configurations is no good.
void evaluate_models(const EvaluationOptions& o, const comm::MpiEnvironment& mpi,
                     const std::vector<EvaluationRequest>& requests,
                     const std::function<void(const EvaluatedModel&)>& evaluate);

/// The attention of a result.
template <class Result>
std::string attention_text(const Result& one) {
  return one.attention.empty() ? "dense" : one.attention;
}

/// Names of results that have a model and its attention, with the attention where others of the model have
/// another one.
template <class Result>
std::vector<std::string> names_of(const std::vector<Result>& all) {
  std::vector<std::string> names;
  for (const Result& one : all)
    names.push_back(std::ranges::count(all, one.model, &Result::model) == 1
                        ? one.model
                        : one.model + ", " + attention_text(one));
  return names;
}

}  // namespace annulus::eval
