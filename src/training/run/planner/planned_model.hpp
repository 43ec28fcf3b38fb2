#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// Keys in which planned_model's configuration differs from the defaults, beside those of the model.
inline constexpr std::string_view planned_model_keys[] = {
    "data.sequence_length", "run.device",       "train.dtype",      "parallel.zero",
    "attention.schedule",   "attention.layout", "memory.recompute", "checkpoint.every"};

/// Whether what a user names as the configuration is a model in Hugging Face's format: a folder, a *.json, or
/// the name of a model of the hub, which is neither there nor ends in .toml.
bool names_model(const std::filesystem::path& path);

/// A configuration to plan a run of a model of which only the shape is known (describe_shape): model.* and
/// attention.mask as config.json has them, sequences as long as its positions, bf16 on GPUs, parallel.zero =
/// 3 (0 where `ranks`, those of the run, is 1), schedule, layout and recompute auto, checkpoints at the end
/// alone; then `overrides`, as Config::load takes them, also over keys of the model. Throws Error that names
/// the file and the key.
Config planned_model(const std::filesystem::path& path, int ranks, std::span<const std::string> overrides);

/// "data.sequence_length = 131072, run.device = 'gpu', …": what planned_model_keys are in `config`.
std::string planned_model_text(const Config& config);

}  // namespace annulus::training
