#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

/// The CRC-32 of `size` bytes wherever they lie, after `previous`: crc_of(begin, end) is that of a range of
/// them (from 0), and is called by several threads side by side when they are many. What it throws is thrown.
std::uint32_t crc32_in_parts(std::uint64_t size,
                             const std::function<std::uint32_t(std::uint64_t, std::uint64_t)>& crc_of,
                             std::uint32_t previous = 0);

}  // namespace annulus::io
