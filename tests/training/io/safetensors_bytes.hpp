#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace annulus::test {

/// A file in safetensors layout as its bytes: the length of `header`, `header`, `data`.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = {}) {
  std::string bytes;
  for (unsigned i = 0; i < 8; ++i)
    bytes += static_cast<char>(static_cast<unsigned char>(std::uint64_t{header.size()} >> (8 * i)));
  return bytes.append(header).append(data);
}

}  // namespace annulus::test
