#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <annulus/training/model/config.hpp>

namespace annulus::training {

/// What weights lie in.
enum class WeightsFormat : std::uint8_t { hugging_face, checkpoint };

/// Whether this may be the name of a model of Hugging Face's hub ("meta-llama/Llama-3.1-8B"): there is no
/// such folder.
bool looks_like_hub_name(const std::filesystem::path& path);

/// What lies at `path`: a folder with config.json, or a checkpoint's with manifest.json. Throws Error, one
/// line, where there is nothing, neither or both; it names the newest checkpoint where `path` is the folder
/// of a run.
WeightsFormat weights_format(const std::filesystem::path& path);

/// What a folder of weights says of its model.
struct ModelDescription {
  WeightsFormat format = WeightsFormat::checkpoint;
  model::Config shape;         ///< with its rope settings
  std::string mask;            ///< as attention.mask has it
  std::int64_t positions = 0;  ///< longest sequence that it is meant for, or has seen in a run; 0: not said
  std::string dtype;           ///< of train.dtype: "bf16" where the weights are said to be, else "f32"
  /// As attention.sparsity and sparsity.dense_layers have it in the run of a checkpoint whose optimizer steps
  /// select pairs by then; else empty.
  std::string sparsity = {};
  std::vector<std::string> dense_layers = {};
};

/// Reads config.json, or the configuration in the checkpoint, and nothing else. Throws Error, one line that
/// names file and key, when the engine does not compute the model.
ModelDescription describe_model(const std::filesystem::path& path);

/// Describes a model in Hugging Face's format that has no weights: its folder, or its config.json alone, by
/// any name. Throws Error, one line that names file and key, where it is none.
ModelDescription describe_shape(const std::filesystem::path& path);

}  // namespace annulus::training
