#include "weights/json.hpp"

#include <annulus/base/error.hpp>
#include <annulus/io/json.hpp>

namespace annulus::weights {

using Json = nlohmann::json;

Json parse_json_object(std::string_view text, const std::string& origin) {
  Json json = io::parse_json(text, origin);
  require(json.is_object(), "'{}' is no JSON object: give the right file", origin);
  return json;
}

std::string shown(const Json& value) {
  constexpr std::size_t longest = 120;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest) + "…";
}

}  // namespace annulus::weights
