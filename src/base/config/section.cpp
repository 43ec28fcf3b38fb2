#include "base/config/section.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace annulus::config {

void Section::allow(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, node] : table_) {
    if (std::find(keys.begin(), keys.end(), key.str()) == keys.end())
      reject(node, "unknown key {}; known are {}", full(key.str()), fmt::join(keys, ", "));
  }
}

const toml::node& Section::need(std::string_view key) const {
  const toml::node* const node = find(key);
  if (node == nullptr) reject(table_, "[{}] lacks {}: add it", name_ == "kernel" ? "[kernel]" : name_, key);
  return *node;
}

double Section::number(const toml::node& node, std::string_view key, double least, bool or_equal) const {
  const double value = node.value<double>().value_or(std::numeric_limits<double>::quiet_NaN());
  if (!node.is_number() || !std::isfinite(value) || value < least || (value == least && !or_equal))
    reject(node, "{} must be a number {} {}", full(key), or_equal ? "not below" : "above", least);
  return value + 0.0;  // -0 is 0
}

std::int64_t Section::integer(const toml::node& node, std::string_view key, std::int64_t least,
                              std::int64_t most) const {
  const auto value = node.value_exact<std::int64_t>();
  if (!value || *value < least || *value > most)
    reject(node, "{} must be an integer from {} to {}", full(key), least, most);
  return *value;
}

bool Section::flag(const toml::node& node, std::string_view key) const {
  const auto value = node.value_exact<bool>();
  if (!value) reject(node, "{} must be true or false", full(key));
  return *value;
}

std::string Section::text(const toml::node& node, std::string_view key) const {
  const auto value = node.value_exact<std::string>();
  if (!value) reject(node, "{} must be a text in quotes", full(key));
  return *value;
}

std::vector<std::string> Section::texts(const toml::node& node, std::string_view key) const {
  const toml::array* const list = node.as_array();
  if (list == nullptr) reject(node, "{} must be a list of texts: write [\"…\", …]", full(key));
  std::vector<std::string> values;
  for (const toml::node& entry : *list) values.push_back(text(entry, key));
  return values;
}

std::string Section::full(std::string_view key) const {
  return name_.empty() ? std::string(key) : fmt::format("{}.{}", name_, key);
}

}  // namespace annulus::config
