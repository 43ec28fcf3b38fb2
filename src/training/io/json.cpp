#include "training/io/json.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "base/text.hpp"

namespace annulus::io {

using json = nlohmann::json;

namespace {

constexpr const char* advice = "give the right file, or write it again";

/// Refuses a text while nlohmann-json goes through it, before anything of it is kept. A callback of
/// json::parse could do the same, but the library looks through all members of an object each time that one
/// of them ends.
class Checker final : public nlohmann::json_sax<json> {
 public:
  Checker(std::string_view text, std::string_view origin) : text_(text), origin_(origin) {}

  bool start_object(std::size_t) override {
    names_.emplace_back();
    return enter();
  }
  bool end_object() override {
    names_.pop_back();
    return leave();
  }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (!names_.back().insert(name).second)
      fail("'{}' names '{}' twice: remove one", origin_, name.substr(0, 120));
    return count();
  }
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) override {
    if (dynamic_cast<const json::out_of_range*>(&error) != nullptr)
      fail("'{}' holds a number that is too large: {}", origin_, advice);
    // The parser stops behind a character of bytes that are no UTF-8.
    fail("'{}' is no JSON from byte {} on: {}", origin_, std::min(position, text_prefix(text_) + 1), advice);
  }

 private:
  bool enter() {
    require(++depth_ <= deepest_nesting, "'{}' is nested more than {} deep: {}", origin_, deepest_nesting,
            advice);
    return count();
  }
  bool leave() { return --depth_, true; }
  bool count() {
    require(++values_ <= most_json_values, "'{}' has more than {} values: {}", origin_, most_json_values,
            advice);
    return true;
  }

  std::string_view text_, origin_;
  int depth_ = 0;
  std::int64_t values_ = 0;
  std::vector<std::set<std::string, std::less<>>> names_;  // of the objects that are open
};

}  // namespace

json parse_json(std::string_view text, std::string_view origin) {
  const std::size_t zero = text.find('\0');  // where nlohmann-json takes the text to end
  require(zero == text.npos, "'{}' is no JSON from byte {} on: {}", origin, zero + 1, advice);
  Checker checker(text, origin);
  json::sax_parse(text, &checker);
  return json::parse(text);
}

json parse_json_object(std::string_view text, std::string_view origin) {
  json value = parse_json(text, origin);
  require(value.is_object(), "'{}' is no JSON object: {}", origin, advice);
  return value;
}

std::string shown(const json& value) {
  constexpr std::size_t longest = 120;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest) + "…";
}

json read_json(const std::filesystem::path& path, const FileKind& kind, Links links) {
  return parse_json(read_text(path, kind, links), path.string());
}

}  // namespace annulus::io
