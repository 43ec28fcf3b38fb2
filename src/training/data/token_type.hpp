#pragma once

#include <cstdint>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>

#include "base/with_dtype.hpp"

namespace annulus::data {

/// The smallest type that holds every id of a vocabulary.
inline DType token_type(std::int64_t vocabulary) {
  if (vocabulary <= 256) return DType::u8;
  if (vocabulary <= 65536) return DType::u16;
  return DType::u32;
}

/// Calls `use` with a zero of the C++ type in which ids are stored.
template <class Use>
void with_token_type(DType type, const Use& use) {
  require(with_dtype<std::uint8_t, std::uint16_t, std::uint32_t>(type, use),
          "token ids are stored as u8, u16 or u32, not {}", name_of(type));
}

/// Tokens converted or checked at once where a whole shard is gone through.
inline constexpr std::int64_t piece_tokens = std::int64_t{1} << 20;

}  // namespace annulus::data
