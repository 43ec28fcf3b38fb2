#include <fmt/format.h>
#include <algorithm>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <annulus/training/run/config.hpp>

#include "training/run/config/config_table.hpp"

namespace annulus::training {

namespace {

// A string of TOML on one line. toml++ would write line ends as they are, and lose the first of a text.
std::string quoted(const std::string& text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (text.find('\'') == text.npos && std::none_of(text.begin(), text.end(), is_control))
    return fmt::format("'{}'", text);
  std::string escaped;
  for (const char c : text) {
    if (is_control(c))
      escaped += fmt::format("\\u{:04X}", static_cast<int>(c));
    else
      (c == '"' || c == '\\' ? escaped += '\\' : escaped) += c;
  }
  return fmt::format("\"{}\"", escaped);
}

template <class T>
std::string to_text(const T& value) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    std::string array;
    for (const std::string& text : value) array += (array.empty() ? "" : ", ") + quoted(text);
    return value.empty() ? "[]" : fmt::format("[ {} ]", array);
  } else if constexpr (std::is_same_v<T, std::vector<Config::DataSet>>) {
    std::string array;
    for (const Config::DataSet& set : value)
      array += fmt::format("{}{{ name = {}, shards = {}, weight = {} }}", array.empty() ? "" : ", ",
                           to_text(set.name), to_text(set.shards), to_text(set.weight));
    return value.empty() ? "[]" : fmt::format("[ {} ]", array);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return quoted(value);
  } else if constexpr (std::is_enum_v<T>) {
    return quoted(std::string(model::name_of_choice(value)));
  } else if constexpr (std::is_floating_point_v<T>) {
    const std::string text = fmt::format("{}", value);  // the shortest that is read back as the same number
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  } else {
    return fmt::format("{}", value);
  }
}

}  // namespace

std::string value_text(const Key& key, const Config& config) {
  // The table's functions give pointers for reading and writing alike; here they are only read.
  return std::visit([](auto* value) { return to_text(*value); }, key.reference(const_cast<Config&>(config)));
}

std::string Config::to_toml(bool explain) const {
  std::string text, section;
  for (const Key& key : config_table()) {
    const std::string name = key.name;
    const std::string key_section = name.substr(0, name.find('.'));
    if (key_section != section) {
      section = key_section;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}", name.substr(name.find('.') + 1), value_text(key, *this));
    text += explain ? fmt::format("  # {}\n", key.meaning) : "\n";
  }
  return text;
}

std::vector<Difference> incompatible(const Config& before, const Config& after, Continuation continuation) {
  std::vector<Difference> differences;
  for (const Key& key : config_table()) {
    if (key.fixed == Fixed::never) continue;
    if (key.fixed == Fixed::in_run && continuation == Continuation::branch) continue;
    const std::string old_value = value_text(key, before), new_value = value_text(key, after);
    if (old_value != new_value) differences.push_back({key.name, old_value, new_value});
  }
  return differences;
}

}  // namespace annulus::training
