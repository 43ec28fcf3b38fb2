#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace annulus::bench {

/// A line of names (columns.hpp), then one for each case and pass, quoted as RFC 4180 has it. What a case has
/// not is empty.
std::string to_csv(const std::vector<nlohmann::json>& cases);

}  // namespace annulus::bench
