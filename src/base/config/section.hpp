#pragma once

#include <fmt/format.h>

#include <toml++/toml.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

  const toml::table& table(const toml::node& node, std::string_view key) const;

  /// A number above `least`, or not below it where `or_equal` is set.
  double number(const toml::node& node, std::string_view key, double least, bool or_equal) const;
  /// From `least` to `most`.
  std::int64_t integer(const toml::node& node, std::string_view key, std::int64_t least,
                       std::int64_t most) const;
  bool flag(const toml::node& node, std::string_view key) const;
  std::string text(const toml::node& node, std::string_view key) const;
  std::vector<std::string> texts(const toml::node& node, std::string_view key) const;

 private:
  std::string full(std::string_view key) const;

  const toml::table& table_;
  std::string name_;
  std::string_view origin_;
};

}  // namespace annulus::config
