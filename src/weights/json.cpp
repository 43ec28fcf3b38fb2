#include "weights/json.hpp"

#include <set>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::weights {

using Json = nlohmann::ordered_json;

nlohmann::ordered_json parse_json_object(std::string_view text, const std::string& origin) {
  constexpr int deepest = 32;
  std::vector<std::set<std::string, std::less<>>> names;  // of the objects that are open
  const auto look = [&](int depth, Json::parse_event_t event, Json& value) {
    require(depth <= deepest, "'{}' is nested more than {} deep: give the right file", origin, deepest);
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key)
      require(names.back().insert(value.get<std::string>()).second, "'{}' names {} twice: remove one", origin,
              shown(value));
    return true;
  };
  const std::size_t zero = text.find('\0');  // where nlohmann-json takes the text to end
  Json json;
  try {
    if (zero != text.npos) fail("'{}' is no JSON from byte {} on: copy or write it again", origin, zero);
    json = Json::parse(text, look);
  } catch (const Json::out_of_range&) {
    fail("'{}' holds a number that is too large: correct it", origin);
  } catch (const Json::parse_error& error) {
    fail("'{}' is no JSON from byte {} on: copy or write it again", origin, error.byte);
  }
  require(json.is_object(), "'{}' is no JSON object: give the right file", origin);
  return json;
}

std::string shown(const nlohmann::ordered_json& value) {
  constexpr std::size_t longest = 120;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest) + "…";
}

}  // namespace annulus::weights
