#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace annulus::bench {

/// A page that needs nothing else. Strong scaling: cases that differ in the number of ranks (and in schedule
/// and layout, one line each) alone. Weak scaling: likewise, with the same tokens on each rank. Time measured
/// and predicted, efficiency against one rank; then a table of all cases, and what was refused.
std::string to_html(const std::vector<nlohmann::json>& cases, const std::vector<nlohmann::json>& refused);

}  // namespace annulus::bench
