#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace annulus::weights {

/// A JSON object. Throws Error, one line that names `origin`, when the text is none, when it names anything
/// twice and when it is nested deeper than deepest_nesting (base/file.hpp). The time that it takes grows with
/// the text, times the logarithm of the number of names.
nlohmann::json parse_json_object(std::string_view text, const std::string& origin);

/// Text of a file as it may stand in an error: quoted, on one line, of bounded length.
std::string shown(const nlohmann::json& value);

}  // namespace annulus::weights
