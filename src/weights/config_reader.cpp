#include "weights/config_reader.hpp"

#include <limits>

#include <annulus/base/error.hpp>

namespace annulus::weights {

using Json = nlohmann::json;

const Json* ConfigReader::take(const char* key) {
  taken_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> ConfigReader::whole(const char* key) {
  const Json* value = take(key);
  if (value == nullptr) return std::nullopt;
  constexpr std::uint64_t largest = std::numeric_limits<std::int32_t>::max();
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() == 0 ||
      value->get<std::uint64_t>() > largest)
    wrong_type(key, "a whole number from 1 to 2147483647");
  return value->get<std::int64_t>();
}

std::optional<double> ConfigReader::number(const char* key) {
  const Json* value = take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong_type(key, "a number");
  return value->get<double>();
}

std::optional<bool> ConfigReader::truth(const char* key) {
  const Json* value = take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) wrong_type(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::text(const char* key) {
  const Json* value = take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong_type(key, "a text");
  return value->get<std::string>();
}

std::int64_t ConfigReader::required_whole(const char* key) {
  const auto value = whole(key);
  require(value.has_value(), "'{}' lacks {}{}: give the config.json of the model", origin_, prefix_, key);
  return *value;
}

double ConfigReader::required_number(const char* key) {
  const auto value = number(key);
  require(value.has_value(), "'{}' lacks {}{}: give the config.json of the model", origin_, prefix_, key);
  return *value;
}

void ConfigReader::refuse(const char* key, std::string_view why) const {
  const auto found = object_.find(key);
  fail("'{}': {}{} = {}: {}", origin_, prefix_, key, found == object_.end() ? "null" : shown(*found), why);
}

void ConfigReader::wrong_type(const char* key, const char* wanted) const {
  fail("'{}': {}{} = {} must be {}", origin_, prefix_, key, shown(object_.at(key)), wanted);
}

void ConfigReader::require_all_taken() const {
  for (const auto& [key, value] : object_.items())
    require(taken_.contains(key) || value.is_null(),
            "'{}': {}{} = {} is not known here and may change what the model computes: remove the key if it "
            "does not",
            origin_, prefix_, shown(Json(key)), shown(value));
}

}  // namespace annulus::weights
