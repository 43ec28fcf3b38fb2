#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>

namespace annulus::config {

/// One table of a TOML file: reads its keys. Each call throws Error naming file, line and key of what is
/// wrong.
class Section {
 public:
  /// `name` is "" for the file's own table; `origin` stands for the file. The table and the text of `origin`
  /// outlive the object.
  Section(const toml::table& table, std::string name, std::string_view origin)
      : table_(table), name_(std::move(name)), origin_(origin) {}

  template <class... Args>
  [[noreturn]] void reject(const toml::node& node, fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}:{}: {}", origin_, node.source().begin.line, fmt::format(text, std::forward<Args>(args)...));
  }

  /// Rejects all other keys.
  void allow(std::initializer_list<std::string_view> keys) const;

  /// The value of a key; null where it is missing.
  const toml::node* find(std::string_view key) const { return table_.get(key); }
  const toml::node& need(std::string_view key) const;

  const toml::table& table() const { return table_; }
  /// Shows `visit` the table of a key of the file's own table, if it is there.
  template <class Visit>
  void in(std::string_view key, const Visit& visit) const {
    const toml::node* const node = find(key);
    if (node == nullptr) return;
    if (!node->is_table()) reject(*node, "{} must be a table: write [{}] and its keys below", key, key);
    visit(Section(*node->as_table(), std::string(key), origin_));
  }

  /// A number above `least`, or not below it where `or_equal` is set.
  double number(const toml::node& node, std::string_view key, double least, bool or_equal) const;
  /// An integer from `least` to `most`.
  std::int64_t integer(const toml::node& node, std::string_view key, std::int64_t least,
                       std::int64_t most) const;
  bool flag(const toml::node& node, std::string_view key) const;
  std::string text(const toml::node& node, std::string_view key) const;
  std::vector<std::string> texts(const toml::node& node, std::string_view key) const;
  /// One of `known`, by their names.
  template <class Enum>
  Enum choice(const toml::node& node, std::string_view key, std::initializer_list<Enum> known) const {
    const std::string given = text(node, key);
    std::vector<std::string_view> names;
    for (const Enum value : known) {
      if (name_of(value) == given) return value;
      names.push_back(name_of(value));
    }
    reject(node, "{} is '{}'; known are {}", full(key), given, fmt::join(names, ", "));
  }

  /// Where the key is there, `to` becomes its value; numbers lie in the `range` of number() or integer().
  template <class T, class... Range>
  void read(std::string_view key, T& to, Range... range) const {
    const toml::node* const node = find(key);
    if (node == nullptr) return;
    if constexpr (std::is_same_v<T, bool>)
      to = flag(*node, key);
    else if constexpr (std::is_same_v<T, std::string>)
      to = text(*node, key);
    else if constexpr (std::is_same_v<T, double>)
      to = number(*node, key, range...);
    else
      to = static_cast<T>(integer(*node, key, range...));
  }

 private:
  std::string full(std::string_view key) const;

  const toml::table& table_;
  std::string name_;
  std::string_view origin_;
};

}  // namespace annulus::config
