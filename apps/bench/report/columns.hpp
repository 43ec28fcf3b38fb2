#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace annulus::bench {

/// One column of the tables of cases: what it is called and where it stands in the object of a case.
struct ResultColumn {
  enum class Form : std::uint8_t { text, count, milliseconds, ratio, percent, bytes };
  const char* name;     ///< in CSV files
  const char* heading;  ///< for people; null: in CSV files alone
  Form form;
  bool of_pass;         ///< `pointer` starts at the pass, not at the case
  const char* pointer;  ///< JSON pointer
};

std::span<const ResultColumn> columns();

/// A row of a table is a pass of a case. `pass` is "forward" or "backward". Null where the case has no such
/// number.
nlohmann::json value_of(const ResultColumn& column, const nlohmann::json& of_case, const std::string& pass);

/// The value as people read it; "–" for null.
std::string text_of(const ResultColumn& column, const nlohmann::json& value);

/// Calls f(case, name of the pass) for every pass that was run.
template <class Cases, class F>
void for_passes(const Cases& cases, const F& f) {
  for (const nlohmann::json& of_case : cases) {
    for (const std::string pass : {"forward", "backward"}) {
      if (!of_case.at(pass).is_null()) f(of_case, pass);
    }
  }
}

/// A line of names, then one for each case and pass, quoted as RFC 4180 has it. What a case has not is empty.
std::string to_csv(const std::vector<nlohmann::json>& cases);

}  // namespace annulus::bench
