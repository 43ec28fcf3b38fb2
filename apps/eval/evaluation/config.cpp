#include "eval/evaluation/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <annulus/base/error.hpp>

#include "training/run/config/config_table.hpp"

namespace annulus::eval {

namespace {

// Wide enough for fast products; what a layer holds beside its input and its output is that of so many rows.
constexpr std::int64_t chunk_rows_of_evaluation = 16384;

bool overrides(const EvaluationRequest& request, std::string_view key) {
  return std::ranges::any_of(request.overrides, [&](std::string_view text) {
    const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
    text.remove_prefix(begin);
    return text.starts_with(key) && text.find_first_not_of(" \t", key.size()) == text.find('=');
  });
}

training::Config without_backward(training::Config config) {
  config.memory.recompute = {"none"};  // which a configuration may leave open
  return config;
}

}  // namespace

training::Config evaluation_config(const training::ModelDescription& model,
                                   const EvaluationRequest& request) {
  const std::string folder = request.folder.string();
  require(!overrides(request, "model.vocabulary"),
          "--set model.vocabulary: '{}' is evaluated as it is, and a run alone gives a model other rows "
          "(docs/models.md): leave the key out",
          folder);
  require(request.tokens > 0 || model.positions > 0,
          "'{}' does not say how long its sequences are: give --length", folder);
  training::Config known;
  known.model_from = folder;
  known.data.shards = request.shards;
  known.data.sequence_length = request.tokens > 0 ? request.tokens : model.positions;
  known.memory.chunk_rows = chunk_rows_of_evaluation;
  known.train.dtype = model.dtype;
  known.attention.sparsity = model.sparsity;
  known.sparsity.dense_layers = model.dense_layers;
  std::vector<std::string_view> keys = {"model.from", "data.shards", "data.sequence_length",
                                        "memory.chunk_rows", "train.dtype"};
  if (!overrides(request, "attention.sparsity"))
    keys.insert(keys.end(), {"attention.sparsity", "sparsity.dense_layers"});
  std::string text;
  for (const training::Key& key : training::config_table())
    if (std::ranges::find(keys, key.name) != keys.end())
      text += fmt::format("{} = {}\n", key.name, value_text(key, known));
  training::Config config =
      training::Config::parse(text, fmt::format("the evaluation of '{}'", folder), request.overrides);
  return without_backward(std::move(config));
}

training::Config evaluation_config_of_file(const std::filesystem::path& file, std::int64_t tokens,
                                           std::vector<std::string> overrides) {
  overrides.push_back(fmt::format("data.sequence_length={}", tokens));
  training::Config config = training::Config::load(file, overrides);
  require(config.model.vocabulary > 0,
          "'{}' does not say model.vocabulary, which a run takes from its data: "
          "give it, like --set model.vocabulary=32000",
          file.string());
  config.train.sequences_per_pass = config.train.micro_batches = 1;
  if (config.memory.chunk_rows == 0) config.memory.chunk_rows = chunk_rows_of_evaluation;
  return without_backward(std::move(config));
}

}  // namespace annulus::eval
