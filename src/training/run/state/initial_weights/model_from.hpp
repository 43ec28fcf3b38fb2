#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <annulus/training/run/config.hpp>

#include "training/run/config/model_description.hpp"

namespace annulus::training {

/// Where keys were given, by their names: "run.toml:3", "--set model.layers=3".
using GivenKeys = std::map<std::string, std::string, std::less<>>;

/// A configuration with what the model says.
Config config_of(const ModelDescription& model);

/// Completes `config` from the model that model.from names, where it names one: keys of the model and
/// attention.mask, unless they were given. Throws Error that names key, place and both values where a given
/// key contradicts the model; rope settings, attention.mask and model.vocabulary (ResizedWeights) may be
/// others.
void take_model(Config& config, const GivenKeys& given);

/// How the run differs from the model that it starts from, and what deserves a look: lines for the log.
struct ModelNotes {
  std::vector<std::string> info, warnings;
};
ModelNotes notes_on_model(const ModelDescription& model, const Config& config);

}  // namespace annulus::training
