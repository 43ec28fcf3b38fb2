#include "training/weights/config_reader.hpp"

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
  constexpr std::uint64_t largest = std::numeric_limits<std::int32_t>::max();
  return typed<std::int64_t>(key, "a whole number from 1 to 2147483647", [](const Json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() - 1 < largest;
  });
}

std::optional<double> ConfigReader::number(const char* key) {
  return typed<double>(key, "a number", [](const Json& value) { return value.is_number(); });
}

std::optional<bool> ConfigReader::truth(const char* key) {
  return typed<bool>(key, "true or false", [](const Json& value) { return value.is_boolean(); });
}

std::optional<std::string> ConfigReader::text(const char* key) {
  return typed<std::string>(key, "a text", [](const Json& value) { return value.is_string(); });
}

std::int64_t ConfigReader::required_whole(const char* key) {
  return required(key, whole(key));
}

double ConfigReader::required_number(const char* key) {
  return required(key, number(key));
}

void ConfigReader::refuse(const char* key, std::string_view why) const {
  const auto found = object_.find(key);
  fail("'{}': {}{} = {}: {}", origin_, prefix_, key, found == object_.end() ? "null" : io::shown(*found),
       why);
}

void ConfigReader::require_all_taken() const {
  for (const auto& [key, value] : object_.items())
    require(taken_.contains(key) || value.is_null(),
            "'{}': {}{} = {} is not known here and may change what the model computes: remove the key if it "
            "does not",
            origin_, prefix_, io::shown(key), io::shown(value));
}

}  // namespace annulus::weights
