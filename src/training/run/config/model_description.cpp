#include "training/run/config/model_description.hpp"

#include <algorithm>
#include <system_error>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/training/checkpoint/reader.hpp>
#include <annulus/training/run/config.hpp>

#include "training/checkpoint/folder.hpp"
#include "training/checkpoint/manifest.hpp"
#include "training/weights/hf_config.hpp"

namespace annulus::training {

namespace fs = std::filesystem;

namespace {

constexpr const char* hf_config_file = "config.json";

/// Throws Error where it cannot be seen, or is a link to nothing.
bool is_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  require(fs::status_known(status), "cannot open '{}': {}: check the permissions of its folder",
          path.string(), error.message());
  require(fs::exists(status) || !fs::is_symlink(fs::symlink_status(path, error)),
          "'{}' is a link to nothing: copy or download the folder again", path.string());
  return fs::is_regular_file(status);
}

/// Throws Error where the folder of a run, or that of its checkpoints, was given instead of one of them.
void reject_run_folder(const fs::path& path) {
  for (const fs::path& folder : {path / "checkpoints", path}) {
    const checkpoint::CheckpointFolder checkpoints(folder, {});
    const std::vector<std::int64_t> steps = checkpoints.steps();
    if (!steps.empty())
      fail("'{}' is the folder of a run: give one of its checkpoints, the newest is '{}'", path.string(),
           checkpoints.path_of(steps.back()).string());
  }
}

ModelDescription describe_hf(const fs::path& path) {
  const weights::HfConfig config = weights::read_hf_config(path);
  return {.format = WeightsFormat::hugging_face,
          .shape = config.shape,
          .mask = config.mask(),
          .positions = config.positions,
          .dtype = config.dtype == DType::bf16 ? "bf16" : "f32"};
}

ModelDescription describe_checkpoint(const fs::path& path) {
  const checkpoint::Checkpoint checkpoint(path, checkpoint::Checkpoint::Check::manifest);
  const Config config = Config::parse_stored(checkpoint.progress().config, path.string());
  require(config.model.vocabulary > 0,
          "{}: the configuration in it does not say model.vocabulary: give a checkpoint of a run",
          path.string());
  try {
    config.model.check();
  } catch (const Error& error) {
    fail("{}: {}", path.string(), error.what());
  }
  const bool sparse = checkpoint.progress().step > config.sparsity.dense_updates;
  return {.format = WeightsFormat::checkpoint,
          .shape = config.model,
          .mask = config.attention.mask,
          .positions = std::max(config.model_positions, config.data.sequence_length),
          .dtype = config.train.dtype,
          .sparsity = sparse ? config.attention.sparsity : "",
          .dense_layers = sparse ? config.sparsity.dense_layers : std::vector<std::string>()};
}

}  // namespace

bool looks_like_hub_name(const fs::path& path) {
  std::error_code error;
  const std::string text = path.string();
  return path.is_relative() && !text.starts_with('.') && path.has_filename() &&
         std::ranges::count(text, '/') == 1 && !fs::exists(path.parent_path(), error);
}

WeightsFormat weights_format(const fs::path& path) {
  std::error_code error;
  require(fs::exists(path, error),
          "there is no '{}': {}give a folder with config.json and safetensors, or a checkpoint",
          path.string(),
          looks_like_hub_name(path) ? fmt::format("models of the Hugging Face hub are not downloaded; hf "
                                                  "download {} --local-dir FOLDER does it, then ",
                                                  path.string())
                                    : "");
  require(fs::is_directory(path, error),
          "'{}' is a file: give the folder with config.json and safetensors, or that of a checkpoint of "
          "version {}",
          path.string(), checkpoint::manifest_version);
  const bool hf = is_file(path / hf_config_file), checkpoint = is_file(path / checkpoint::manifest_file);
  require(
      !hf || !checkpoint,
      "'{}' holds {} of a model in Hugging Face's format and {} of a checkpoint: move one of them elsewhere",
      path.string(), hf_config_file, checkpoint::manifest_file);
  if (hf) return WeightsFormat::hugging_face;
  if (!checkpoint) {
    reject_run_folder(path);
    fail(
        "'{}' holds neither {} of a model in Hugging Face's format nor {} of a checkpoint: "
        "give a folder of weights",
        path.string(), hf_config_file, checkpoint::manifest_file);
  }
  return WeightsFormat::checkpoint;
}

ModelDescription describe_model(const fs::path& path) {
  return weights_format(path) == WeightsFormat::hugging_face ? describe_hf(path) : describe_checkpoint(path);
}

ModelDescription describe_shape(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error) && fs::exists(path, error)) return describe_hf(path);
  require(weights_format(path) == WeightsFormat::hugging_face,
          "'{}' is a checkpoint: give config.toml of its run, or a folder with {}", path.string(),
          hf_config_file);
  return describe_hf(path);
}

}  // namespace annulus::training
