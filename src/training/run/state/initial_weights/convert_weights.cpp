#include "training/run/state/initial_weights/convert_weights.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>

#include "training/checkpoint/kept_files.hpp"
#include "training/checkpoint/writer.hpp"
#include "training/io/logging.hpp"
#include "training/io/new_folder.hpp"
#include "training/run/saving/checkpoint_parts.hpp"
#include "training/run/state/initial_weights/model_from.hpp"
#include "training/weights/families.hpp"

namespace annulus::training {

void write_as_checkpoint(const WeightSource& from, const std::filesystem::path& folder, const Seen& seen) {
  const ModelDescription& model = from.model();
  Config config = config_of(model);
  if (model.positions > 0) config.data.sequence_length = model.positions;
  config.train.dtype = model.dtype;
  checkpoint::Progress progress;
  progress.config = config.to_toml();

  std::vector<std::string> notes;
  const checkpoint::KeptFiles files{.vocabulary = model.shape.vocabulary, .contents = from.files(notes)};
  io::NewFolder made(folder);
  const std::vector<checkpoint::StoredTensor> tensors = tensors_of(from.map());
  std::vector<float> values;
  checkpoint::write_part(
      {.folder = made.temporary(), .part = 0, .parts = 1, .slices = {{0, from.map().size(), 0}}}, tensors,
      [&](checkpoint::Buffer buffer, std::int64_t offset, std::int64_t count) {
        values.assign(static_cast<std::size_t>(count), 0.0f);
        if (buffer == checkpoint::Buffer::parameters) from.read(offset, values);
        return std::span<const float>(values);
      },
      seen);
  checkpoint::write_manifest(made.temporary(), progress, tensors, 1);
  checkpoint::write_kept_files(made.temporary(), files);
  made.commit();
  for (const std::string& note : notes) logging::warn("{}", note);
}

DType export_type(const HfChoices& choices, const ModelDescription& model) {
  return choices.dtype ? *choices.dtype : parse_dtype(model.dtype, "train.dtype");
}

weights::HfConfig config_of_export(const ModelDescription& model, const weights::ModelFiles& files,
                                   const HfChoices& choices, const std::string& origin) {
  weights::HfConfig config;
  config.shape = model.shape;
  config.positions = choices.positions > 0 ? choices.positions : model.positions;
  config.sliding_window = weights::sliding_window_of(model.mask, origin);
  config.family = choices.family;
  if (const auto kept = files.find(weights::token_ids_file); kept != files.end())
    weights::take_kept(kept->second, kept->first, config);
  const std::string_view fits = weights::family_of(config).name;
  require(choices.family.empty() || fits == choices.family,
          "--family {}: the model is none of that type, it fits {}: leave the option out, or give a "
          "model_type that fits",
          choices.family, fits);
  config.family = fits;
  return config;
}

void write_as_hf(const WeightSource& from, const HfChoices& choices, const std::filesystem::path& folder,
                 const Seen& seen) {
  const ModelDescription& model = from.model();
  weights::HfExport what;
  std::vector<std::string> notes;
  what.files = from.files(notes);
  what.config = config_of_export(model, what.files, choices, folder.string());
  what.type = export_type(choices, model);
  what.read = [&](std::int64_t begin, std::span<float> values) {
    from.read(begin, values);
    if (seen) seen(begin + std::ssize(values));
  };
  if (what.files.empty()) {
    // Nothing is claimed: without the keys transformers would take ids of LLaMA 2.
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      what.config.token_ids[key] = "null";
  }
  if (std::ranges::none_of(what.files, [](const auto& file) {
        return file.first.starts_with("tokenizer") || file.first == "vocab.json";
      }))
    notes.push_back(fmt::format(
        "'{}' has no tokenizer{}, since none is kept with the checkpoint: the tokenizer must follow, that of "
        "the training data with its at most {} entries. Copy by hand what fits of it, and of the model that "
        "the weights come from (docs/models.md)",
        folder.string(), what.files.empty() ? ", generation_config.json and ids of special tokens" : "",
        model.shape.vocabulary));
  const std::optional<std::int64_t> ids = weights::tokenizer_ids(what.files);
  if (ids && *ids < model.shape.vocabulary && model.format == WeightsFormat::checkpoint)
    notes.push_back(
        fmt::format("the tokenizer of '{}' has {} ids, the model rows for {}: where the run gave it new ones "
                    "(model.vocabulary), the tokenizer must follow (docs/models.md)",
                    folder.string(), *ids, model.shape.vocabulary));
  io::NewFolder made(folder);
  weights::write_hf_folder(made.temporary(), what);
  made.commit();
  if (const std::string older = weights::older_yarn(what.config.shape.rope, what.config.positions);
      !older.empty())
    notes.push_back(older);
  for (const std::string& note : notes) logging::warn("{}", note);
}

}  // namespace annulus::training
