#include <annulus/io/crc32.hpp>

#include <zlib.h>

namespace annulus::io {

std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t previous) {
  if (data.empty()) return previous;  // zlib takes a null pointer for a request of the initial value
  return static_cast<std::uint32_t>(
      ::crc32_z(previous, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

}  // namespace annulus::io
