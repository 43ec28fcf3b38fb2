#pragma once

#include <cstdint>

/// Names in a tensor dump (docs/formats/tensor-dump.md), for those who write it and those who read it.
namespace annulus::dump::format {

inline constexpr const char* name = "annulus-tensors";
inline constexpr std::int64_t version = 1;

// Attributes of the root group.
inline constexpr const char* format_attribute = "format";
inline constexpr const char* version_attribute = "version";
inline constexpr const char* complete_attribute = "complete";
inline constexpr const char* dtype_attribute = "dtype";  ///< of every tensor, too

// Attributes of a tensor.
inline constexpr const char* order_attribute = "order";
inline constexpr const char* dimensions_attribute = "dimensions";

}  // namespace annulus::dump::format
