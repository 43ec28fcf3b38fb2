#include "common/text.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace annulus::app {

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> units = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000;
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, units[unit]);
}

}  // namespace annulus::app
