#include "common/output_json.hpp"

#include <utility>

#include "base/config/output_format.hpp"
#include "training/io/json.hpp"

namespace annulus::app {

std::string output_text(nlohmann::json output) {
  output["format_version"] = config::output_format_version;
  return io::json_text(output) + "\n";
}

}  // namespace annulus::app
