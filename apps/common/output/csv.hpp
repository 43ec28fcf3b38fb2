#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace annulus::app {

/// A line of a CSV file: texts in quotes where RFC 4180 wants them, nothing for null.
std::string csv_line(const std::vector<nlohmann::json>& values);

}  // namespace annulus::app
