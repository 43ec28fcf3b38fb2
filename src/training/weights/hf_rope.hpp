#pragma once

#include <string>

#include "training/weights/config_reader.hpp"
#include "training/weights/families.hpp"
#include "training/weights/hf_config.hpp"

namespace annulus::weights {

/// Rotary positions of layers of one kind.
struct Rope {
  float theta = 10000;
  model::RopeScaling scaling = {};
};
/// Rotary positions of a model, and of its layers with a window.
struct Ropes {
  Rope model, of_windows;
  double fraction = 1;  // of every head, that positions turn
};

/// Takes the rope settings of either form: rope_theta, rope_local_base_freq, partial_rotary_factor and
/// rope_scaling (transformers 4), or rope_parameters with theta inside, by types of layers where these differ
/// (transformers 5); both where they agree.
Ropes read_ropes(ConfigReader& reader, const std::string& origin, const Family& family,
                 std::int64_t positions);

/// Sets them in the form of transformers 4, which 5 reads, too; those by types of layers in both forms.
void write_rope(const HfConfig& config, const Family& family, const Windows& windows,
                nlohmann::ordered_json& json);

/// The shortest decimal number that is read as this float.
double shortest(float value);

}  // namespace annulus::weights
