#include "common/output/output_json.hpp"

#include <utility>

#include <annulus/base/version.hpp>

#include "base/config/output_format.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"

namespace annulus::app {

std::string output_text(nlohmann::json output) {
  output["format_version"] = config::output_format_version;
  return io::json_text(output) + "\n";
}

void write_output(const std::filesystem::path& file, nlohmann::json output) {
  if (!file.empty()) io::write_text_atomically(file, output_text(std::move(output)));
}

nlohmann::json output_head(const char* program) {
  return {{"program", program}, {"version", version()}, {"git_hash", git_hash()}};
}

}  // namespace annulus::app
