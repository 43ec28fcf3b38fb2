#include "eval/evaluation/model_folder.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/checkpoint/reader.hpp>
#include <annulus/training/run/config.hpp>

#include "training/data/shard.hpp"
#include "training/io/logging.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;

namespace {

constexpr const char* other_ways =
    "name shards that were packed with the model's tokenizer, by bytes or SentencePiece (--shards SHARDS), "
    "or give ids in place of text (--ids 1,2,3)";

struct FoundTokenizer {
  std::unique_ptr<const data::Tokenizer> tokenizer;
  std::string where;
};

FoundTokenizer of_shards(const std::vector<fs::path>& paths, const std::string& option) {
  const fs::path first = data::find_shards(paths).front();
  return {data::TokenShard::open(first).tokenizer(), fmt::format("{} '{}'", option, first.string())};
}

/// Shards are named in the configuration of a checkpoint's run.
std::vector<fs::path> shards_of_run(const fs::path& checkpoint) {
  const checkpoint::Checkpoint saved(checkpoint, checkpoint::Checkpoint::Check::manifest);
  const auto config = training::Config::parse_stored(saved.progress().config, checkpoint.string());
  const std::vector<std::string> shards = config.training_shards();
  require(!shards.empty(), "'{}' names no shards", checkpoint.string());
  return {shards.begin(), shards.end()};
}

FoundTokenizer find_tokenizer(const training::WeightSource& weights, const fs::path& folder,
                              const fs::path& shards) {
  if (!shards.empty()) return of_shards({shards}, "--shards");
  std::vector<std::string> notes;  // about files that go out with an export
  weights::ModelFiles files = weights.files(notes);
  if (const auto model = files.find("tokenizer.model"); model != files.end()) {
    const std::string where = fmt::format("tokenizer.model of '{}'", folder.string());
    return {data::make_sentencepiece_tokenizer(std::move(model->second), where), where};
  }
  require(!files.contains("tokenizer.json"),
          "the tokenizer of '{}' is a tokenizer.json, which this program does not read", folder.string());
  require(weights.model().format == training::WeightsFormat::checkpoint, "'{}' holds no tokenizer",
          folder.string());
  return of_shards(shards_of_run(folder), "data.shards of the run:");
}

/// What a checkpoint's run has learned from; nothing where that is gone.
std::optional<data::TokenizerIdentity> learned_from(const fs::path& checkpoint) {
  try {
    return data::TokenShard::open(data::find_shards(shards_of_run(checkpoint)).front()).header().tokenizer;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

fs::path weights_folder(const fs::path& model) {
  for (const fs::path& folder : {model / "checkpoints", model})
    if (const auto newest = checkpoint::newest_good(folder)) return newest->path();
  return model;
}

void require_tokenizer(const training::WeightSource& weights, const fs::path& folder,
                       const data::TokenizerIdentity& tokenizer, std::string_view key) {
  constexpr const char* other =
      "{}: the shards were packed with tokenizer {} of {} entries, '{}' {}: "
      "pack them with the model's own tokenizer";
  std::vector<std::string> notes;  // about files that go out with an export
  require(training::is_tokenizer_of(tokenizer, weights.files(notes)), other, key, tokenizer.name,
          tokenizer.vocabulary, folder.string(), "has another one beside its weights");
  if (weights.model().format != training::WeightsFormat::checkpoint) return;
  if (const auto learned = learned_from(folder))
    require(*learned == tokenizer, other, key, tokenizer.name, tokenizer.vocabulary, folder.string(),
            fmt::format("has learned from shards of {} of {} entries", learned->name, learned->vocabulary));
}

std::unique_ptr<const data::Tokenizer> tokenizer_of(const training::WeightSource& weights,
                                                    const fs::path& folder, const fs::path& shards) {
  FoundTokenizer found;
  try {
    found = find_tokenizer(weights, folder, shards);
  } catch (const Error& error) {
    fail("no tokenizer: {}; {}", error.what(), other_ways);
  }
  const std::int64_t ids = found.tokenizer->identity().vocabulary, known = weights.model().shape.vocabulary;
  require(ids <= known, "the tokenizer of {} has {} ids, the model of '{}' {}: it is another model's; {}",
          found.where, ids, folder.string(), known, other_ways);
  if (ids < known)
    logging::warn("the tokenizer of {} has {} ids, the model of '{}' {}: the others are never chosen",
                  found.where, ids, folder.string(), known);
  return std::move(found.tokenizer);
}

}  // namespace annulus::eval
