#include <annulus/training/run/config.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <type_traits>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/config/parse.hpp"
#include "base/file.hpp"
#include "base/nearest.hpp"
#include "base/parse_number.hpp"
#include "base/text.hpp"
#include "training/io/logging.hpp"
#include "training/run/config/config_table.hpp"
#include "training/run/saving/other_folder.hpp"
#include "training/run/state/initial_weights/model_from.hpp"

namespace annulus::training {

namespace {

// "file:line", or the origin alone when there is no line.
std::string place(std::string_view origin, const toml::node& node) {
  const auto line = node.source().begin.line;
  return line > 0 ? fmt::format("{}:{}", origin, line) : std::string(origin);
}

const Key* find_key(const std::string& name) {
  for (const Key& key : config_table())
    if (name == key.name) return &key;
  return nullptr;
}

bool is_section(const std::string& name) {
  return std::any_of(config_table().begin(), config_table().end(),
                     [&](const Key& key) { return std::string_view(key.name).starts_with(name + "."); });
}

template <class T>
std::string expected_type() {
  if constexpr (std::is_enum_v<T>)
    return fmt::format("one of {}", fmt::join(model::names_of(T()), ", "));
  else if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_integral_v<T>)
    return "a whole number";
  else if constexpr (std::is_floating_point_v<T>)
    return "a number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "a string";
  else if constexpr (std::is_same_v<T, std::vector<Config::DataSet>>)
    return "an array of tables with name, shards and weight, as in [ { name = 'books', shards = [ "
           "'shards/books' ], weight = 2.0 } ]";
  else
    return "a string or an array of strings";
}

// Sets `target` from a TOML value; false when the type does not fit.
template <class T>
bool assign(T& target, const toml::node& node, const std::string& name, const std::string& where);

// Sets a set of data.sets from a table; false when a key has another type.
bool assign_set(Config::DataSet& set, const toml::table& table, const std::string& name,
                const std::string& where) {
  for (const auto& [key, node] : table) {
    const std::string full = fmt::format("{}.{}", name, key.str());
    const bool fits = key == "name"     ? assign(set.name, node, full, where)
                      : key == "shards" ? assign(set.shards, node, full, where)
                      : key == "weight" ? assign(set.weight, node, full, where)
                                        : false;
    require(fits || key == "name" || key == "shards" || key == "weight",
            "{}: {} is no key of a set, which has name, shards and weight", where, full);
    if (!fits) return false;
  }
  for (const char* key : {"name", "shards"})
    require(table.contains(key), "{}: a table of {} has no {}: each has name and shards, and may have weight",
            where, name, key);
  return true;
}

template <class T>
bool assign(T& target, const toml::node& node, const std::string& name, const std::string& where) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    if (const auto text = node.value_exact<std::string>()) return target = {*text}, true;
    if (!node.is_array()) return false;
    std::vector<std::string> values;
    for (const toml::node& element : *node.as_array()) {
      const auto text = element.value_exact<std::string>();
      if (!text) return false;
      values.push_back(*text);
    }
    target = std::move(values);
  } else if constexpr (std::is_same_v<T, std::vector<Config::DataSet>>) {
    if (!node.is_array()) return false;
    std::vector<Config::DataSet> sets;
    for (const toml::node& element : *node.as_array())
      if (!element.is_table() || !assign_set(sets.emplace_back(), *element.as_table(), name, where))
        return false;
    target = std::move(sets);
  } else if constexpr (std::is_enum_v<T>) {
    // What model.qk_norm was when heads had one norm or none.
    const auto truth = std::is_same_v<T, model::QkNorm> ? node.value_exact<bool>() : std::nullopt;
    const auto text =
        truth ? std::optional<std::string>(*truth ? "head" : "none") : node.value_exact<std::string>();
    if (!text) return false;
    target =
        static_cast<T>(place_of_name(*text, model::names_of(target), fmt::format("{}: {}", where, name)));
  } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, bool>) {
    const auto value = node.value_exact<T>();
    if (!value) return false;
    target = *value;
  } else if constexpr (std::is_integral_v<T>) {
    const auto value = node.value_exact<std::int64_t>();
    if (!value) return false;
    require(std::in_range<T>(*value), "{}: {} = {} is out of range: give at most {}", where, name, *value,
            std::numeric_limits<T>::max());
    target = static_cast<T>(*value);
  } else {
    if (!node.is_number()) return false;
    target = static_cast<T>(*node.value<double>());
  }
  return true;
}

// Keys of tokens, whose values may have the units of --tokens.
constexpr auto counts_of_tokens = std::to_array<std::string_view>(
    {"data.sequence_length", "model.positions", "model.rope_original_length", "train.tokens"});

// "128k" as 131072, "1M" as 1048576; nothing for other texts and for what 64 bits do not hold.
std::optional<std::int64_t> in_units(std::string_view text) {
  const auto number = take_number<std::int64_t>(text);  // in front of its unit
  const auto power = std::string_view("kmgt").find(static_cast<char>(text.size() == 1 ? text[0] | 0x20 : 0));
  if (!number || power == std::string_view::npos) return std::nullopt;
  const std::int64_t factor = std::int64_t{1} << (10 * (power + 1));
  if (*number < 0 || *number > std::numeric_limits<std::int64_t>::max() / factor) return std::nullopt;
  return *number * factor;
}

// What is read into: the configuration, and where its keys were given.
struct Reading {
  Config& config;
  GivenKeys given;
};

void set(Reading& into, const std::string& name, const toml::node& node, const std::string& where) {
  const bool counts = std::ranges::find(counts_of_tokens, name) != counts_of_tokens.end();
  if (const auto text = node.value_exact<std::string>(); counts && text)
    if (const auto number = in_units(*text)) return set(into, name, toml::value(*number), where);
  const Key* key = find_key(name);
  require(key != nullptr || !is_section(name),
          "{}: {} is a section, not a key: write [{}] and its keys below", where, name, name);
  if (key == nullptr)
    fail("{}: unknown key '{}'; {}annulus-train --print-config lists all", where, name, suggested_key(name));
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        require(assign(*target, node, name, where), "{}: {} must be {}{}", where, name, expected_type<T>(),
                counts ? ", as in 131072 or '128k'" : "");
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          const auto value = static_cast<double>(*target);
          require(std::isfinite(value), "{}: {} = {} is out of range: give a finite number", where, name,
                  *target);
          require(value >= key->minimum, "{}: {} = {} is out of range: give at least {}", where, name,
                  *target, key->minimum);
          require(value <= key->maximum, "{}: {} = {} is out of range: give at most {:.0f}", where, name,
                  *target, key->maximum);
        }
      },
      key->reference(into.config));
  into.given[name] = where;
}

void read_table(Reading& into, const toml::table& table, const std::string& prefix, std::string_view origin) {
  for (const auto& [key, node] : table) {
    const std::string name =
        prefix.empty() ? std::string(key.str()) : fmt::format("{}.{}", prefix, key.str());
    if (node.is_table() && find_key(name) == nullptr) {
      if (!is_section(name))
        fail("{}: unknown section [{}]; {}annulus-train --print-config lists all", place(origin, node), name,
             suggested_section(name));
      read_table(into, *node.as_table(), name, origin);
    } else {
      set(into, name, node, place(origin, node));
    }
  }
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t";
  const auto begin = text.find_first_not_of(blank);
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(blank) + 1 - begin));
}

/// Key and value of "key=value".
std::pair<std::string, std::string> overridden(std::string_view text) {
  const auto equals = text.find('=');
  std::string key = trimmed(text.substr(0, equals));
  require(equals != text.npos && !key.empty(),
          "--set {}: write it as key=value, for instance --set train.steps=200", text);
  return {std::move(key), trimmed(text.substr(equals + 1))};
}

void override_key(Reading& into, const std::string& text) {
  const auto [name, value] = overridden(text);
  // What is written to config.toml and to checkpoints must be TOML, which they are read as.
  require(is_text(text), "--set {}: the value is not UTF-8: use another name, or another encoding", name);
  const std::string where = fmt::format("--set {}", text);
  const Key* key = find_key(name);
  toml::table table;
  try {
    config::require_flat(value, where);
    table = toml::parse("value = " + value + "\n");
  } catch (const toml::parse_error&) {
    table.insert("value", value);  // a string without quotes
  }
  // Without quotes a string may look like something else, a folder named 2024 for example.
  if (key != nullptr && !table["value"].is_string() && !table["value"].is_array()) {
    const Reference reference = key->reference(into.config);
    if (std::holds_alternative<std::string*>(reference) ||
        std::holds_alternative<std::vector<std::string>*>(reference))
      table.insert_or_assign("value", value);
  }
  set(into, name, *table["value"].node(), where);
}

/// Where an error is to be mended that names keys: the --set that gave one of them, else the file.
std::string source_of(const GivenKeys& given, std::string_view origin, std::string_view error) {
  const auto is_named = [&](std::string_view key) {
    constexpr std::string_view word = "abcdefghijklmnopqrstuvwxyz0123456789_";
    for (std::size_t at = 0; (at = error.find(key, at)) != error.npos; at += key.size()) {
      const std::size_t end = at + key.size();
      if ((at == 0 || word.find(error[at - 1]) == word.npos) &&
          (end == error.size() || word.find(error[end]) == word.npos))
        return true;
    }
    return false;
  };
  std::string overrides;
  for (const auto& [key, where] : given)
    if (where.starts_with("--set ") && is_named(key)) overrides += (overrides.empty() ? "" : ", ") + where;
  return overrides.empty() ? std::string(origin) : overrides;
}

Config defaults() {
  Config config;
  config.model.vocabulary = 0;
  return config;
}

// Takes keys that another version knew out of a stored configuration. Throws Error where one of them may
// change what is computed.
void drop_unknown(toml::table& table, std::string_view origin) {
  constexpr std::array harmless{"run", "data", "train", "checkpoint"};
  for (auto& [section, node] : table) {
    const std::string name(section.str());
    require(is_section(name) && node.is_table(),
            "{}: its configuration has [{}], which this version of annulus-train does not know and which may "
            "change what is computed: go on with the version that wrote it",
            origin, name);
    toml::table& keys = *node.as_table();
    std::vector<std::string> unknown;
    for (const auto& [key, value] : keys)
      if (find_key(fmt::format("{}.{}", name, key.str())) == nullptr) unknown.emplace_back(key.str());
    for (const std::string& key : unknown) {
      std::ostringstream value;
      value << toml::node_view<const toml::node>(keys.get(key));
      require(std::ranges::find(harmless, name) != harmless.end(),
              "{}: its configuration has {}.{} = {}, which this version of annulus-train does not know and "
              "which may change what is computed: go on with the version that wrote it",
              origin, name, key, value.str());
      logging::warn(
          "{}: its configuration has {}.{} = {}, which this version of annulus-train does not know and "
          "leaves out",
          origin, name, key, value.str());
      keys.erase(key);
    }
  }
}

}  // namespace

Config Config::load(const std::filesystem::path& file, std::span<const std::string> overrides) {
  return parse(read_text(file, kinds::toml), file.string(), overrides);
}

Config Config::parse(std::string_view text, std::string_view origin, std::span<const std::string> overrides) {
  Config config = defaults();
  const toml::table table = config::parse(text, origin);
  Reading reading{config, {}};
  read_table(reading, table, "", origin);
  for (const std::string& text_override : overrides) override_key(reading, text_override);
  if ((config.train.tokens > 0 || config.train.epochs > 0) && !reading.given.contains("train.steps"))
    config.train.steps = 0;
  try {
    take_model(config, reading.given);
  } catch (const Error& error) {
    // Here, because whoever loads the configuration has none to ask with.
    const std::string other = other_folder_warning(std::string(origin), overrides, config);
    fail("{}{}{}", error.what(), other.empty() ? "" : "; ", other);
  }
  try {
    config.check();
    config.model.pattern = model::pattern_of(config.model.kinds());
  } catch (const Error& error) {
    fail("{}: {}", source_of(reading.given, origin, error.what()), error.what());
  }
  return config;
}

Config Config::parse_stored(std::string_view text, std::string_view origin) {
  Config config = defaults();
  toml::table table = config::parse(text, origin);
  drop_unknown(table, origin);
  Reading reading{config, {}};
  read_table(reading, table, "", origin);
  try {
    config.model.pattern = model::pattern_of(config.model.kinds());
  } catch (const Error& error) {
    fail("{}: {}", origin, error.what());
  }
  return config;
}

}  // namespace annulus::training
