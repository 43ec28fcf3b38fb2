#include "config/rename_keys.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::config {
namespace {

/// "file:line", or the file alone for what comes from no file.
std::string line_of(std::string_view origin, const toml::node& node) {
  const auto line = node.source().begin.line;
  return line > 0 ? fmt::format("{}:{}", origin, line) : std::string(origin);
}

/// The table that a key stands in, and the key's last word; null where there is no such table.
std::pair<toml::table*, std::string_view> find_table(toml::table& table, std::string_view key) {
  const auto dot = key.find('.');
  if (dot == key.npos) return {&table, key};
  return {table[key.substr(0, dot)].as_table(), key.substr(dot + 1)};
}

}  // namespace

void rename_keys(toml::table& table, Names names, std::string_view origin) {
  for (const Renamed& row : renamed()) {
    if (row.names != names) continue;
    const auto [keys, before] = find_table(table, row.before);
    toml::node* const node = keys == nullptr ? nullptr : keys->get(before);
    if (node == nullptr) continue;
    const std::string_view now = find_table(table, row.now).second;
    const std::string where = line_of(origin, *node);
    if (const toml::node* const other = keys->get(now))
      fail("{}: {} is the old name of {}, which {} gives, too: keep {} alone", where, row.before, row.now,
           line_of(origin, *other), row.now);
    warn_old_name(where, row.before, row.now);
    node->visit([keys = keys, now](auto& value) { keys->insert(now, std::move(value)); });  // with its line
    keys->erase(before);
  }
}

}  // namespace annulus::config
