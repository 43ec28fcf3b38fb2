#include "training/run/state/initial_weights/model_from.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <type_traits>

#include <annulus/base/error.hpp>

#include "attention/sequence/mask_terms.hpp"
#include "training/checkpoint/folder.hpp"
#include "training/run/config/config_table.hpp"
#include "training/weights/hf_config.hpp"

namespace annulus::training {

namespace {

constexpr std::string_view mask_key = "attention.mask", positions_key = "model.positions",
                           vocabulary_key = "model.vocabulary", pattern_key = "model.pattern";

/// Keys that a model has a value of.
bool is_of_model(std::string_view key) {
  return key == mask_key || (key.starts_with("model.") && key != "model.from");
}

/// Rotary positions of longer sequences, which a run may set anew.
bool is_of_rope(std::string_view key) {
  return key.starts_with("model.rope_") && key != "model.rope_fraction";
}

void copy_value(const Key& key, Config& from, Config& to) {
  std::visit(
      [&](auto* value) {
        using T = std::remove_pointer_t<decltype(value)>;
        *std::get<T*>(key.reference(to)) = *value;
      },
      key.reference(from));
}

/// A mask but for documents, which are how sequences are packed and not part of a model.
std::string of_the_model(const std::string& mask) {
  annulus::detail::MaskTerms terms = annulus::detail::parse_mask_terms(mask, mask_key);
  terms.full = false;
  terms.documents.reset();
  terms.causal = !terms.window && !terms.dilated && !terms.blocks;
  return annulus::detail::to_string(terms);
}

/// Whether both make the same of a position, but for rounding.
bool same_frequencies(const model::Config& a, const model::Config& b) {
  const auto same = [](double x, double y) { return std::abs(x - y) <= 1e-5 * std::abs(y); };
  const model::RopeFrequencies of_a = a.frequencies(), of_b = b.frequencies();
  return same(of_a.attention_factor, of_b.attention_factor) &&
         std::ranges::equal(of_a.inverse, of_b.inverse, same);
}

/// Throws Error where a scaling is asked for that is not the model's, and not by how much.
void require_rope_factor(const Config& config, const GivenKeys& given, const std::string& models) {
  const auto where = given.find("model.rope_scaling");
  if (where == given.end() || given.contains("model.rope_factor")) return;
  const std::string& name = config.model.rope.name;
  constexpr std::array scaled{"linear", "llama3", "yarn"};
  require(name == models || std::ranges::find(scaled, name) == scaled.end(),
          "{}: model.rope_scaling = '{}' without model.rope_factor changes nothing: set model.rope_factor to "
          "the new length over the one that the model was trained on (docs/models.md)",
          where->second, name);
}

/// How a run goes on whose model cannot be read.
std::string without_model(const Config& config) {
  const checkpoint::CheckpointFolder checkpoints(std::filesystem::path(config.run.folder) / "checkpoints",
                                                 {});
  if (const std::vector<std::int64_t> steps = checkpoints.steps(); !steps.empty())
    return fmt::format(
        ". The run in run.folder = '{}' goes on without it, from its checkpoints: --set model.from={}",
        config.run.folder, checkpoints.path_of(steps.back()).string());
  std::error_code error;
  if (std::filesystem::exists(config.model_from, error)) return "";
  return fmt::format(" (--set model.from=PATH; relative paths are looked for in {})",
                     std::filesystem::current_path(error).string());
}

}  // namespace

Config config_of(const ModelDescription& model) {
  Config config;
  config.model = model.shape;
  config.model_positions = model.positions;
  config.attention.mask = model.mask;
  return config;
}

void take_model(Config& config, const GivenKeys& given) {
  if (config.model_from.empty()) return require_rope_factor(config, given, "");
  ModelDescription model;
  try {
    model = describe_model(config.model_from);
  } catch (const Error& error) {
    const auto where = given.find("model.from");
    fail("{}: model.from: {}{}", where == given.end() ? "configuration" : where->second, error.what(),
         without_model(config));
  }
  require_rope_factor(config, given, model.shape.rope.name);
  Config theirs = config_of(model);
  // Another scaling has other numbers: those of the model's would be left over.
  if (given.contains("model.rope_scaling") && config.model.rope.name != model.shape.rope.name)
    theirs.model.rope = {};
  for (const Key& key : config_table()) {
    const std::string_view name = key.name;
    if (!is_of_model(name)) continue;
    const auto where = given.find(name);
    const bool of_the_data = name == vocabulary_key && config.model.vocabulary == 0;
    if (name == pattern_key && where != given.end()) {  // behind the number of layers
      try {
        config.model.pattern = model::pattern_of(config.model.kinds());
      } catch (const Error& error) {
        fail("{}: {}", where->second, error.what());
      }
    }
    if (where == given.end() || of_the_data) {
      copy_value(key, theirs, config);
    } else if (name != mask_key && name != positions_key && name != vocabulary_key && !is_of_rope(name)) {
      const std::string mine = value_text(key, config), its = value_text(key, theirs);
      require(mine == its,
              "{}: {} = {} contradicts model.from = '{}', whose model has {}: leave the key out, which takes "
              "the model's value",
              where->second, name, mine, config.model_from, its);
    }
  }
}

ModelNotes notes_on_model(const ModelDescription& model, const Config& config) {
  ModelNotes notes;
  const Config theirs = config_of(model);
  std::vector<std::string> others;
  for (const Key& key : config_table()) {
    const std::string mine = value_text(key, config), its = value_text(key, theirs);
    if (is_of_rope(key.name) && mine != its)
      others.push_back(fmt::format("{} = {} (the model has {})", key.name, mine, its));
  }
  if (!others.empty()) notes.info.push_back(fmt::format("set anew: {}", fmt::join(others, ", ")));
  if (of_the_model(config.attention.mask) != of_the_model(model.mask))
    notes.warnings.push_back(
        fmt::format("attention.mask = '{}' was set; the model's own mask is '{}', which the run takes when "
                    "the key is left out",
                    config.attention.mask, model.mask));
  else if (config.attention.mask == model.mask && model.mask != Config().attention.mask)
    notes.info.push_back(fmt::format("attention.mask = '{}', as the model has it", model.mask));
  if (model.positions > 0 && config.data.sequence_length > model.positions &&
      same_frequencies(config.model, model.shape))
    notes.warnings.push_back(fmt::format(
        "data.sequence_length = {} exceeds the {} tokens of the model's sequences, and its rotary positions "
        "are as they were: set model.rope_scaling, or a larger model.rope_theta (docs/models.md)",
        config.data.sequence_length, model.positions));
  if (const std::string older = weights::older_yarn(
          config.model.rope, std::max(config.model_positions, config.data.sequence_length));
      !older.empty())
    notes.warnings.push_back(older);
  return notes;
}

}  // namespace annulus::training
