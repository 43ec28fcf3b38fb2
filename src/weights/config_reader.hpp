#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "weights/json.hpp"

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

  /// The same of one type. Throw Error when it is of another one, and when a whole number is not in
  /// [1, 2³¹).
  std::optional<std::int64_t> whole(const char* key);
  std::optional<double> number(const char* key);
  std::optional<bool> truth(const char* key);
  std::optional<std::string> text(const char* key);

  /// The same; throw Error where the key is missing.
  std::int64_t required_whole(const char* key);
  double required_number(const char* key);

  /// Throws Error "'<file>': <key> = <value> <why>" about a key that was taken.
  [[noreturn]] void refuse(const char* key, std::string_view why) const;

  /// Throws Error that names the first key that nobody took, unless it has no value.
  void require_all_taken() const;

 private:
  [[noreturn]] void wrong_type(const char* key, const char* wanted) const;

  const nlohmann::json& object_;
  const std::string& origin_;
  std::string prefix_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace annulus::weights
