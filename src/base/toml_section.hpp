#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus {

/// One table of a TOML file: reads its keys and names file, line and key of what is wrong.
class Section {
 public:
  Section(const toml::table& table, std::string name, std::string_view origin)
      : table_(table), name_(std::move(name)), origin_(origin) {}

  template <class... Args>
  [[noreturn]] void reject(const toml::node& node, fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}:{}: {}", origin_, node.source().begin.line, fmt::format(text, std::forward<Args>(args)...));
  }

  void allow(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, node] : table_) {
      if (std::find(keys.begin(), keys.end(), key.str()) == keys.end())
        reject(node, "unknown key {}; known are {}", full(key.str()), fmt::join(keys, ", "));
    }
  }

  const toml::node* find(std::string_view key) const { return table_.get(key); }

  const toml::node& need(std::string_view key) const {
    const toml::node* const node = find(key);
    if (node == nullptr) reject(table_, "[{}] lacks {}: add it", name_ == "kernel" ? "[kernel]" : name_, key);
    return *node;
  }

  const toml::table& table(const toml::node& node, std::string_view key) const {
    if (!node.is_table()) reject(node, "{} must be a table: write [{}] and its keys below", key, key);
    return *node.as_table();
  }

  /// A number above `least`, or not below it where `or_equal` is set.
  double number(const toml::node& node, std::string_view key, double least, bool or_equal) const {
    const double value = node.value<double>().value_or(std::numeric_limits<double>::quiet_NaN());
    if (!node.is_number() || !std::isfinite(value) || value < least || (value == least && !or_equal))
      reject(node, "{} must be a number {} {}", full(key), or_equal ? "not below" : "above", least);
    return value;
  }

  std::int64_t integer(const toml::node& node, std::string_view key, std::int64_t least,
                       std::int64_t most) const {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || *value < least || *value > most)
      reject(node, "{} must be an integer from {} to {}", full(key), least, most);
    return *value;
  }

  bool flag(const toml::node& node, std::string_view key) const {
    const auto value = node.value_exact<bool>();
    if (!value) reject(node, "{} must be true or false", full(key));
    return *value;
  }

  std::string text(const toml::node& node, std::string_view key) const {
    const auto value = node.value_exact<std::string>();
    if (!value) reject(node, "{} must be a text in quotes", full(key));
    return *value;
  }

  std::vector<std::string> texts(const toml::node& node, std::string_view key) const {
    const toml::array* const list = node.as_array();
    if (list == nullptr) reject(node, "{} must be a list of texts: write [\"…\", …]", full(key));
    std::vector<std::string> values;
    for (const toml::node& entry : *list) values.push_back(text(entry, key));
    return values;
  }

 private:
  std::string full(std::string_view key) const {
    return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
  }

  const toml::table& table_;
  std::string name_;
  std::string_view origin_;
};

}  // namespace annulus
