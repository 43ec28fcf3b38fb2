#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace annulus::io {

/// CRC-32 of IEEE 802.3, zlib's: Python's `zlib.crc32(data, previous)` gives the same number. `previous` is
/// the CRC of what comes before `data`, 0 at the start.
std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t previous = 0);

/// The CRC-32 of the bytes of an array, as they lie in memory.
template <class T>
std::uint32_t crc32_of(std::span<const T> values, std::uint32_t previous = 0) {
  return crc32(std::as_bytes(values), previous);
}

}  // namespace annulus::io
