#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace annulus::bench {

/// A page that needs nothing else. Strong scaling: cases that differ in the number of ranks (and in schedule
/// and layout, one line each) alone. Weak scaling: likewise, with the same tokens on each rank. Time
/// measured, predicted and ideal, efficiency, share of the local kernel's rate; then a table of all cases,
/// and what was unsupported. The heading is the fastest of the largest cases; date, host and command follow.
std::string to_html(const std::vector<nlohmann::json>& cases, const std::vector<nlohmann::json>& unsupported);

}  // namespace annulus::bench
