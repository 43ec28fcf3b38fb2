#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace annulus::app {

/// The text of an output file: with its "format_version", and fields under their old names beside the new
/// ones (config/old_keys.hpp). `file` names the rows that count: "attention", "links", …
std::string output_text(nlohmann::json output, std::string_view file);

}  // namespace annulus::app
