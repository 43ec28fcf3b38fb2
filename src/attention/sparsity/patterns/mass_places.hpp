#pragma once

#include <annulus/attention/sparsity/options.hpp>
#include <cstdint>

namespace annulus::sparsity {

/// Where the masses of a list lie: those of keys, and behind them, from a whole word of bits on, those of
/// block distances, of each document its own.
struct MassPlaces {
  std::int64_t tokens;
  std::int64_t slashes;  ///< block distances of all documents
  std::int64_t first_slash() const { return (tokens + 31) / 32 * 32; }
  std::int64_t all() const { return first_slash() + slashes; }
};

/// The most blocks that so many slashes hold: the nearest ones do.
inline std::int64_t most_listed(std::int64_t blocks, std::int64_t slashes) {
  const std::int64_t shorter = blocks - (slashes < blocks ? slashes : blocks);  // rows of the last, less one
  return blocks * (blocks + 1) / 2 - shorter * (shorter + 1) / 2;
}

}  // namespace annulus::sparsity
