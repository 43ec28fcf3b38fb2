#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace annulus::app {

/// A value as a field of a CSV file, in quotes where RFC 4180 wants them; nothing for null.
std::string csv_field(const nlohmann::json& value);

/// A line of a CSV file.
std::string csv_line(const std::vector<nlohmann::json>& values);

}  // namespace annulus::app
