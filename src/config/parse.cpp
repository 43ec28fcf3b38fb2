#include "config/parse.hpp"

#include <string>

#include <annulus/base/error.hpp>

namespace annulus::config {

namespace {

[[noreturn]] void reject(const toml::parse_error& error, std::string_view origin, std::string_view advice) {
  fail("{}:{}: {}{}{}", origin, error.source().begin.line, error.description(), advice.empty() ? "" : "; ",
       advice);
}

}  // namespace

toml::table parse(std::string_view text, std::string_view origin, std::string_view advice) {
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    reject(error, origin, advice);
  }
}

toml::table parse_file(const std::filesystem::path& file, std::string_view advice) {
  try {
    return toml::parse_file(file.string());
  } catch (const toml::parse_error& error) {
    reject(error, file.string(), advice);
  }
}

}  // namespace annulus::config
