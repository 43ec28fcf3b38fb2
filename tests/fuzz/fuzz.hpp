#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>

/// What fuzz targets share. A target is a source TARGET.cpp that defines LLVMFuzzerTestOneInput, and a folder
/// corpus/TARGET of inputs. libFuzzer drives it where the compiler has one, standalone/standalone.cpp
/// elsewhere.
namespace annulus::fuzz {

/// Ends the program, so that the driver keeps the input, unless `condition` holds.
inline void expect(bool condition, const char* expectation, std::string_view found = {}) {
  if (condition) return;
  std::fprintf(stderr, "expected: %s\n%s\n", expectation, std::string(found).c_str());
  std::abort();
}

/// Runs `body` on one input. Bad input may end as Error that names `origin`, the file that it came from. Any
/// other exception ends the program. Returns true when `body` came to its end.
template <class Body>
bool accepts(std::string_view origin, const Body& body) noexcept {
  try {
    body();
    return true;
  } catch (const Error& error) {
    const std::string_view text = error.what();
    expect(text.find(origin) != text.npos, "an error that names the file", text);
    return false;
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Takes the first line off `text`.
inline std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(line.size() < text.size() ? line.size() + 1 : text.size());
  return line;
}

}  // namespace annulus::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
