#include "bench/report/case_file.hpp"

#include <annulus/base/error.hpp>
#include <annulus/config/old_keys.hpp>
#include <annulus/io/atomic.hpp>

namespace annulus::bench {

using nlohmann::json;

CaseFile read_case_file(const std::filesystem::path& file) {
  json content = json::parse(io::read_text(file), nullptr, false);
  config::add_new_keys(content, "attention");
  require(content.is_object() && content.value("program", "") == "annulus-bench attention",
          "{} is no result of annulus-bench attention: give files that its --json wrote", file.string());
  CaseFile result{.git_hash = content.value("git_hash", ""), .cases = {}, .unsupported = {}};
  if (content.contains("cases")) {
    result.cases = content["cases"].get<std::vector<json>>();
    result.unsupported = content.value("unsupported", std::vector<json>());
  } else {
    result.cases.push_back(std::move(content));
  }
  return result;
}

}  // namespace annulus::bench
