#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <annulus/training/run/config.hpp>

#include "training/run/config/model_description.hpp"

namespace annulus::eval {

/// What a user says of an evaluation.
struct EvaluationRequest {
  std::filesystem::path folder = {};  ///< of the weights
  std::int64_t tokens = 0;            ///< of a sequence; 0: the longest that the model is meant for
  std::vector<std::string> shards = {};
  std::vector<std::string> overrides = {};  ///< as --set takes them
};

/// The configuration by which a model evaluates. What it computes is as its weights say (shape, rotary
/// positions, mask, type) and, where it is of a run, its run (attention.sparsity, sparsity.dense_layers); how
/// it computes is as the keys' defaults say; the overrides change both, but no shape. An override of
/// attention.sparsity is for all layers but those of an override of sparsity.dense_layers. Throws Error as
/// Config::load does.
training::Config evaluation_config(const training::ModelDescription& model, const EvaluationRequest& request);

/// The configuration in `file` with these overrides, for forward passes of its model over sequences of
/// `tokens`; the weights are not its matter. Throws Error as Config::load does, and where it does not say
/// model.vocabulary.
training::Config evaluation_config_of_file(const std::filesystem::path& file, std::int64_t tokens,
                                           std::vector<std::string> overrides);

}  // namespace annulus::eval
