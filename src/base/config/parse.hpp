#pragma once

#include <toml++/toml.h>

#include <filesystem>
#include <string_view>

namespace annulus::config {

/// The table of a TOML text; `origin` stands for the file in errors. Throws Error "origin:line: what", with
/// `advice` behind it, where the text is no TOML.
toml::table parse(std::string_view text, std::string_view origin, std::string_view advice = {});

/// The table of a file.
toml::table parse_file(const std::filesystem::path& file, std::string_view advice = {});

/// Throws Error that names the line where tables and arrays are nested deeper than deepest_nesting
/// (base/file.hpp), which would overflow the stack: a key of 10⁵ dots is as many tables inside of one
/// another. Done by parse.
void require_flat(std::string_view text, std::string_view origin);

}  // namespace annulus::config
