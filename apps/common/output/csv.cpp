#include "common/output/csv.hpp"

#include <nlohmann/json.hpp>

namespace annulus::app {

namespace {

std::string csv_field(const nlohmann::json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string csv_line(const std::vector<nlohmann::json>& values) {
  std::string line;
  const char* separator = "";
  for (const nlohmann::json& value : values) {
    line += separator + csv_field(value);
    separator = ",";
  }
  return line + "\n";
}

}  // namespace annulus::app
