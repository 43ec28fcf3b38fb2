#include "bench/report/case_file.hpp"

#include <annulus/base/error.hpp>

#include "base/config/output_format.hpp"
#include "bench/report/columns.hpp"
#include "bench/report/page.hpp"
#include "bench/report/relate.hpp"
#include "training/io/json.hpp"

namespace annulus::bench {

using nlohmann::json;

CaseFile read_case_file(const std::filesystem::path& file) {
  json content = io::read_json(file);
  const std::string name = file.string();
  return io::take_json_apart(name, [&] {
    require(content.is_object() && content.value("program", "") == "annulus-bench attention",
            "{} is no result of annulus-bench attention: give files that its --json wrote", name);
    const int format = content.value("format_version", 1);
    require(
        format == config::output_format_version,
        "{} has format_version {}, this program reads {}: measure again, or join it with the program that "
        "wrote it",
        name, format, config::output_format_version);
    CaseFile result{.git_hash = content.value("git_hash", ""), .cases = {}, .unsupported = {}};
    if (content.contains("cases")) {
      result.cases = content["cases"].get<std::vector<json>>();
      result.unsupported = content.value("unsupported", std::vector<json>());
    } else {
      result.cases.push_back(std::move(content));
    }
    for (const json& of_case : result.cases)
      require(of_case.at("topology").at("ranks").get<std::int64_t>() > 0,
              "'{}' holds a case without ranks: run it again", name);
    // What is missing is told with the file's name.
    std::vector<json> tried = result.cases;
    relate(tried);
    to_csv(tried);
    to_html(tried, result.unsupported);
    return result;
  });
}

}  // namespace annulus::bench
