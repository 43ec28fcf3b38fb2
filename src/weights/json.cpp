#include "weights/json.hpp"

#include <set>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::weights {

using Json = nlohmann::json;

namespace {

/// Refuses a text while nlohmann-json goes through it, before anything of it is kept. A callback of
/// Json::parse could do the same, but the library looks through all members of an object each time that one
/// of them ends.
class Checker : public nlohmann::json_sax<Json> {
 public:
  explicit Checker(const std::string& origin) : origin_(origin) {}

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
    if (!names_.back().insert(name).second) fail("'{}' names {} twice: remove one", origin_, shown(name));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    if (dynamic_cast<const Json::out_of_range*>(&error) != nullptr)
      fail("'{}' holds a number that is too large: correct it", origin_);
    fail("'{}' is no JSON from byte {} on: copy or write it again", origin_, position);
  }

 private:
  bool enter() {
    constexpr int deepest = 32;
    require(++depth_ <= deepest, "'{}' is nested more than {} deep: give the right file", origin_, deepest);
    return true;
  }
  bool leave() { return --depth_, true; }

  const std::string& origin_;
  int depth_ = 0;
  std::vector<std::set<std::string, std::less<>>> names_;  // of the objects that are open
};

}  // namespace

Json parse_json_object(std::string_view text, const std::string& origin) {
  const std::size_t zero = text.find('\0');  // where nlohmann-json takes the text to end
  require(zero == text.npos, "'{}' is no JSON from byte {} on: copy or write it again", origin, zero);
  Checker checker(origin);
  Json::sax_parse(text, &checker);
  Json json = Json::parse(text);
  require(json.is_object(), "'{}' is no JSON object: give the right file", origin);
  return json;
}

std::string shown(const Json& value) {
  constexpr std::size_t longest = 120;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= longest ? text : text.substr(0, longest) + "…";
}

}  // namespace annulus::weights
