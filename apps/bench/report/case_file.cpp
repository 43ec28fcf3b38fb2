#include "bench/report/case_file.hpp"

#include <annulus/base/error.hpp>
#include <annulus/config/output_format.hpp>
#include <annulus/io/json.hpp>

#include "bench/report/columns.hpp"

namespace annulus::bench {

using nlohmann::json;

namespace {

/// Takes from a case what tables and drawings take, so that what is missing is told with the file's name.
void try_case(const json& of_case, const std::string& file) {
  const json& config = of_case.at("config");
  for (const char* text : {"schedule", "layout", "mask", "dtype"}) config.at(text).get<std::string>();
  for (const char* number : {"tokens", "heads", "kv_heads", "head_dim"})
    config.at(number).get<std::int64_t>();
  config.at("overlap").get<bool>();
  const json& topology = of_case.at("topology");
  for (const char* text : {"text", "execution_space", "communicator"}) topology.at(text).get<std::string>();
  topology.value("attention_kernel", "");
  for (const char* number : {"nodes", "threads_per_rank"}) topology.at(number).get<std::int64_t>();
  require(topology.at("ranks").get<std::int64_t>() > 0, "'{}' holds a case without ranks: run it again",
          file);
  for (const std::string pass : {"forward", "backward"}) {
    const json& here = of_case.at(pass);
    if (here.is_null()) continue;
    here.at("seconds").get<double>();
    here.at("exposed_communication").at("seconds").get<double>();
    if (here.contains("striped_attention")) here.at("striped_attention").get_ref<const json::object_t&>();
    for (const Column& column : columns()) text_of(column, value_of(column, of_case, pass));
  }
}

void try_unsupported(const json& combination) {
  for (const char* text : {"schedule", "layout", "mask", "reason"}) combination.at(text).get<std::string>();
  for (const char* number : {"tokens", "ranks"}) combination.at(number).get<std::int64_t>();
}

}  // namespace

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
    for (const json& of_case : result.cases) try_case(of_case, name);
    for (const json& combination : result.unsupported) try_unsupported(combination);
    return result;
  });
}

}  // namespace annulus::bench
