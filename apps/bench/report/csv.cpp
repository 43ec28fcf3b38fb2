#include "bench/report/csv.hpp"

#include "bench/report/columns.hpp"
#include "common/output/csv.hpp"

namespace annulus::bench {

std::string to_csv(const std::vector<nlohmann::json>& cases) {
  std::string text;
  const auto line = [&](const auto& field_of) {
    std::vector<nlohmann::json> fields;
    for (const ResultColumn& column : columns()) fields.push_back(field_of(column));
    text += app::csv_line(fields);
  };
  line([](const ResultColumn& column) { return nlohmann::json(column.name); });
  for_passes(cases, [&](const nlohmann::json& of_case, const std::string& pass) {
    line([&](const ResultColumn& column) { return value_of(column, of_case, pass); });
  });
  return text;
}

}  // namespace annulus::bench
