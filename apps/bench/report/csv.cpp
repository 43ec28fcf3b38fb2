#include "bench/report/csv.hpp"

#include <annulus/config/old_keys.hpp>

#include "bench/report/columns.hpp"

namespace annulus::bench {

namespace {

std::string field(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string to_csv(const std::vector<nlohmann::json>& cases) {
  std::string text;
  // The columns, then those with an old name once more under that one.
  const auto line = [&](const auto& field_of) {
    const char* separator = "";
    const auto add = [&](const Column& column, std::string_view name) {
      text += separator;
      text += field_of(column, name);
      separator = ",";
    };
    for (const Column& column : columns()) add(column, column.name);
    for (const Column& column : columns())
      if (const auto before = config::old_key("attention.csv", "", column.name)) add(column, *before);
    text += "\n";
  };
  line([](const Column&, std::string_view name) { return std::string(name); });
  for_passes(cases, [&](const nlohmann::json& of_case, const std::string& pass) {
    line([&](const Column& column, std::string_view) { return field(value_of(column, of_case, pass)); });
  });
  return text;
}

}  // namespace annulus::bench
