#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>

#include "base/file.hpp"

/// The one door through which JSON comes in.
namespace annulus::io {

/// Values in one text beyond which it is refused: each takes some tens of bytes.
inline constexpr std::int64_t most_json_values = std::int64_t{1} << 23;

/// The value of a JSON text. Throws Error that names `origin` where the text is no JSON (and from which byte
/// on), is nested deeper than deepest_nesting, has more than most_json_values values, or an object names a
/// member twice.
nlohmann::json parse_json(std::string_view text, std::string_view origin);

/// The value of a file that holds a JSON text.
nlohmann::json read_json(const std::filesystem::path& path, const FileKind& kind = kinds::json,
                         Links links = Links::follow);

/// The text of a value. Names of files need not be UTF-8, which is all that JSON has: their other bytes
/// become U+FFFD, where nlohmann's own dump throws.
template <class Json>
std::string json_text(const Json& value, int indent = 2) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// The value of a JSON object. Throws Error as parse_json, and where the text is another value.
nlohmann::json parse_json_object(std::string_view text, std::string_view origin);

/// A value, or a name, of a file as it may stand in an error: quoted, on one line, of bounded length.
std::string shown(const nlohmann::json& value);

/// Calls `use`, which takes a JSON value apart, and gives what it gives. Where a value is missing or of
/// another type, throws Error that names `origin` and that value.
template <class Use>
auto take_json_apart(std::string_view origin, const Use& use) {
  try {
    return use();
  } catch (const nlohmann::json::exception& error) {
    const std::string_view text = error.what();  // "[json.exception.type_error.302] type must be …"
    fail("'{}' holds other JSON than is expected there ({}): give the right file, or write it again", origin,
         text.substr(text.find("] ") == text.npos ? 0 : text.find("] ") + 2));
  }
}

}  // namespace annulus::io
