#include "common/output_json.hpp"

#include <utility>

#include <annulus/config/old_keys.hpp>

namespace annulus::app {

std::string output_text(nlohmann::json output, std::string_view file) {
  config::add_old_keys(output, file);
  output["format_version"] = config::output_format_version;
  return output.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace annulus::app
