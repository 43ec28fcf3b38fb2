#pragma once

#include <string>

#include "training/weights/config_reader.hpp"
#include "training/weights/hf_config.hpp"

namespace annulus::weights {

/// Takes the rope settings of either form: rope_theta and rope_scaling (transformers 4), or rope_parameters
/// with theta inside (transformers 5); both where they agree.
void read_rope(ConfigReader& reader, const std::string& origin, HfConfig& config);

/// Sets them in the form of transformers 4, which 5 reads, too.
void write_rope(const HfConfig& config, double theta, nlohmann::ordered_json& json);

}  // namespace annulus::weights
