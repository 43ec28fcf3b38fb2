#pragma once

#include <toml++/toml.h>

#include <filesystem>
#include <string_view>

namespace annulus::config {

/// The table of a TOML text; `origin` stands for the file in errors. Throws Error "origin:line: what", with
/// `advice` behind it, where the text is no TOML.
toml::table parse(std::string_view text, std::string_view origin, std::string_view advice = {});

/// The same of a file.
toml::table parse_file(const std::filesystem::path& file, std::string_view advice = {});

}  // namespace annulus::config
