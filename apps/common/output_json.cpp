#include "common/output_json.hpp"

#include <utility>

#include <annulus/config/old_keys.hpp>
#include <annulus/io/json.hpp>

namespace annulus::app {

std::string output_text(nlohmann::json output, std::string_view file) {
  config::add_old_keys(output, file);
  output["format_version"] = config::output_format_version;
  return io::json_text(output) + "\n";
}

}  // namespace annulus::app
