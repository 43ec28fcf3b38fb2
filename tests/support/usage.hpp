#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <ctime>

namespace annulus::test {

/// CPU seconds of all threads of this process.
inline double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

inline std::int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// Sanitizers multiply time and memory.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace annulus::test
