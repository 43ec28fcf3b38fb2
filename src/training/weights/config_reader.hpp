#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "training/io/json.hpp"

namespace annulus::weights {

/// Takes values out of a JSON object and knows which keys nobody took. A key whose value is null counts as
/// missing. Errors are one line that names file and key.
class ConfigReader {
 public:
  /// `prefix` stands before keys in errors: "rope_scaling.". Refers to its arguments.
  ConfigReader(const nlohmann::json& object, const std::string& origin, std::string prefix = "")
      : object_(object), origin_(origin), prefix_(std::move(prefix)) {}

  /// The value of a key, which counts as taken; null where it is missing.
  const nlohmann::json* take(const char* key);

  /// Take a value of one type. Throw Error when it is of another one, and when a whole number is not in
  /// [1, 2³¹).
  std::optional<std::int64_t> whole(const char* key);
  std::optional<double> number(const char* key);
  std::optional<bool> truth(const char* key);
  std::optional<std::string> text(const char* key);

  /// Take a value that must be there: throw Error where the key is missing.
  std::int64_t required_whole(const char* key);
  double required_number(const char* key);

  /// Throws Error "'<file>': <key> = <value> <why>" about a key that was taken.
  [[noreturn]] void refuse(const char* key, std::string_view why) const;

  /// Throws Error that names the first key that nobody took, unless it has no value.
  void require_all_taken() const;

 private:
  /// The value of a key as a T, where it is right; `wanted` says what that is.
  template <class T, class IsRight>
  std::optional<T> typed(const char* key, const char* wanted, const IsRight& is_right) {
    const nlohmann::json* value = take(key);
    if (value == nullptr) return std::nullopt;
    require(is_right(*value), "'{}': {}{} = {} must be {}", origin_, prefix_, key, io::shown(*value), wanted);
    return value->get<T>();
  }
  template <class T>
  T required(const char* key, const std::optional<T>& value) const {
    require(value.has_value(), "'{}' lacks {}{}: give the config.json of the model", origin_, prefix_, key);
    return *value;
  }

  const nlohmann::json& object_;
  const std::string& origin_;
  std::string prefix_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace annulus::weights
