#pragma once

#include <toml++/toml.h>

#include <string_view>

#include <annulus/config/renamed.hpp>

namespace annulus::config {

/// Gives keys that stand under their old names (renamed.hpp) their new ones, each with a warning; `origin`
/// stands for the file. Lines of values stay known. Throws Error that names both where a key stands under
/// both names.
void rename_keys(toml::table& table, Names names, std::string_view origin);

}  // namespace annulus::config
