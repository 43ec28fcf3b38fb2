#pragma once

#include <fmt/format.h>

#include <annulus/base/device_code.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace annulus {

/// Every failure that Annulus reports. The message reads "what is wrong (where): what to do"; it names the
/// file, field or rank concerned. Only `main` catches it: it logs the rank and ends all ranks.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error with a formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(fmt::format(text, std::forward<Args>(args)...));
}

/// Throws Error with a formatted message unless `condition` holds. For what a user or a caller can get wrong;
/// always on. What can only be a bug of our own is ANNULUS_ASSERT's business.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) fail(text, std::forward<Args>(args)...);
}

namespace detail {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
}

}  // namespace annulus

/// Internal invariant, checked in the `cpu-debug` preset only (ANNULUS_ENABLE_ASSERTS).
#if defined(ANNULUS_ENABLE_ASSERTS) && !defined(ANNULUS_DEVICE_PASS)
#define ANNULUS_ASSERT(expression) \
  ((expression) ? void(0) : ::annulus::detail::assertion_failed(#expression, __FILE__, __LINE__))
#else
#define ANNULUS_ASSERT(expression) void(0)
#endif
