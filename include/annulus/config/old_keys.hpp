#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Fields of output files that older readers know by other names: they stay beside the new ones.
namespace annulus::config {

/// "format_version" of outputs that have both. Outputs without that field are version 1 and have the old
/// names.
inline constexpr int output_format_version = 2;

struct OutputKey {
  std::string_view file;    ///< "metrics", "attention", "attention.csv", "plan", …; empty: every output
  std::string_view parent;  ///< key of the object, or of the list of objects, that it is in; empty: any
  std::string_view before, now;
};

/// All of them. Of the rows for a field, the first that fits counts.
std::span<const OutputKey> output_keys();

/// The old name of a field; nothing where it has none.
std::optional<std::string_view> old_key(std::string_view file, std::string_view parent, std::string_view now);

/// The new name of an old field; nothing where it has none.
std::optional<std::string_view> new_key(std::string_view file, std::string_view parent,
                                        std::string_view before);

namespace detail {

template <class Json, class NameOf>
void add_names(Json& value, std::string_view file, std::string_view parent, const NameOf& name_of) {
  if (value.is_array()) {
    for (Json& entry : value) add_names(entry, file, parent, name_of);
  } else if (value.is_object()) {
    std::vector<std::pair<std::string, Json>> added;
    for (auto& [key, field] : value.items()) {
      add_names(field, file, key, name_of);
      if (const auto other = name_of(file, parent, key)) added.emplace_back(*other, field);
    }
    for (auto& [key, field] : added) value.emplace(key, std::move(field));
  }
}

}  // namespace detail

/// Adds to every object in `value` (of nlohmann::json) the old names of its fields, with their values. What
/// has them already stays.
template <class Json>
void add_old_keys(Json& value, std::string_view file) {
  detail::add_names(value, file, {}, old_key);
}

/// The other way round, for what an older version wrote.
template <class Json>
void add_new_keys(Json& value, std::string_view file) {
  detail::add_names(value, file, {}, new_key);
}

}  // namespace annulus::config
