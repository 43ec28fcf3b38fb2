#include "base/units.hpp"

#include <fmt/format.h>

#include <string_view>

namespace annulus {

std::string duration_text(double seconds) {
  const auto text = [](double value, std::string_view unit) {
    const int digits = value >= 999.95 ? 0 : value >= 99.995 ? 1 : value >= 9.9995 ? 2 : 3;
    return fmt::format("{:.{}f} {}", value, digits, unit);
  };
  if (seconds >= 2 * 86400) return text(seconds / 86400, "d");
  if (seconds >= 2 * 3600) return text(seconds / 3600, "h");
  if (seconds >= 2 * 60) return text(seconds / 60, "min");
  if (seconds >= 1) return text(seconds, "s");
  return seconds >= 1e-3 || seconds == 0 ? text(1e3 * seconds, "ms") : text(1e6 * seconds, "us");
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} bytes", bytes);
  const char* unit = "kB";
  double value = static_cast<double>(bytes) / 1000;
  for (const char* larger : {"MB", "GB", "TB"})
    if (value >= 1000) value /= 1000, unit = larger;
  return fmt::format("{:.2f} {}", value, unit);
}

double four_digits(double value) {
  return std::stod(fmt::format("{:.3e}", value));
}

}  // namespace annulus
