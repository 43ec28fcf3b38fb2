#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <annulus/training/data/tokenizer.hpp>

#include "eval/samples/compose.hpp"

/// A folder of samples: token shards, one for each length, and samples.jsonl (docs/evaluation.md).
namespace annulus::eval {

/// What is known of a sample besides its tokens.
struct SampleFacts {
  std::string kind;             ///< of kind_names, or what a benchmark calls it
  std::optional<double> depth;  ///< 0 to 1, of kinds that have one
  std::string answer = {};
};

/// Samples of as many tokens each.
struct SampleShard {
  std::string file;         ///< its name in the folder
  std::int64_t tokens = 0;  ///< of a sample: sample i is tokens [i · tokens, i · tokens + tokens)
  std::uint32_t checksum = 0;
  std::optional<std::uint32_t> loss_mask_checksum = {};
  std::vector<SampleFacts> samples = {};
};

struct SampleSet {
  std::filesystem::path folder;
  data::TokenizerIdentity tokenizer = {};
  std::vector<SampleShard> shards = {};  ///< by length
};

/// Samples to be made, of as many tokens each.
struct SampleGroup {
  std::int64_t tokens = 0;
  std::vector<SampleFacts> samples = {};  ///< whose answers compose gives
  std::function<Sample(std::int64_t index)> compose = {};
};

/// Writes a new folder, with all of its files or not at all. `made_by` says how. Without `loss_mask` all
/// tokens count: shards to train on, and no samples to be scored. Throws Error where something stands there.
void write_samples(const std::filesystem::path& folder, const data::Tokenizer& tokenizer,
                   const std::vector<SampleGroup>& groups, const nlohmann::json& made_by, bool loss_mask);

/// Reads samples.jsonl, and the headers of the shards. Throws Error that names the file and what is wrong.
SampleSet read_samples(const std::filesystem::path& folder);

}  // namespace annulus::eval
