#include <annulus/io/json.hpp>

#include <cstdint>

namespace annulus::io {

nlohmann::json parse_json(std::string_view text, std::string_view origin) {
  using nlohmann::json;
  constexpr const char* advice = "give the right file, or write it again";
  const std::size_t zero = text.find('\0');  // where nlohmann-json takes the text to end
  require(zero == text.npos, "'{}' is no JSON from byte {} on: {}", origin, zero, advice);
  std::int64_t values = 0;
  const auto look = [&](int depth, json::parse_event_t event, const json&) {
    require(depth <= deepest_nesting, "'{}' is nested more than {} deep: {}", origin, deepest_nesting,
            advice);
    if (event == json::parse_event_t::object_end || event == json::parse_event_t::array_end) return true;
    require(++values <= most_json_values, "'{}' has more than {} values: {}", origin, most_json_values,
            advice);
    return true;
  };
  try {
    return json::parse(text, look);
  } catch (const json::parse_error& error) {
    fail("'{}' is no JSON from byte {} on: {}", origin, error.byte, advice);
  } catch (const json::out_of_range&) {
    fail("'{}' holds a number that is too large: {}", origin, advice);
  }
}

nlohmann::json read_json(const std::filesystem::path& path, const FileKind& kind, Links links) {
  return parse_json(read_text(path, kind, links), path.string());
}

}  // namespace annulus::io
