#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace annulus::app {

/// The text of an output file, with its "format_version" (config/output_format.hpp).
std::string output_text(nlohmann::json output);

}  // namespace annulus::app
