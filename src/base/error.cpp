#include <annulus/base/error.hpp>

namespace annulus::detail {

void assertion_failed(const char* expression, const char* file, int line) {
  fail(
      "internal error: {} does not hold at {}:{}. This is a bug in Annulus: please report it with the "
      "command that led here",
      expression, file, line);
}

}  // namespace annulus::detail
