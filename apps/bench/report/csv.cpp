#include "bench/report/csv.hpp"

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
  const auto line = [&](const auto& field_of) {
    const char* separator = "";
    for (const ResultColumn& column : columns()) {
      text += separator;
      text += field_of(column);
      separator = ",";
    }
    text += "\n";
  };
  line([](const ResultColumn& column) { return std::string(column.name); });
  for_passes(cases, [&](const nlohmann::json& of_case, const std::string& pass) {
    line([&](const ResultColumn& column) { return field(value_of(column, of_case, pass)); });
  });
  return text;
}

}  // namespace annulus::bench
