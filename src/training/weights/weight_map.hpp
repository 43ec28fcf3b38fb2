#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace annulus::weights {

/// Names of files by names of tensors.
using WeightMap = std::map<std::string, std::string, std::less<>>;

/// What the text of model.safetensors.index.json says. Throws Error naming `origin` unless it has a
/// weight_map, and where a name leads out of the folder.
WeightMap parse_weight_map(std::string_view text, const std::string& origin);

}  // namespace annulus::weights
