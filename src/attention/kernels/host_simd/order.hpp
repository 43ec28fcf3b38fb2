#pragma once

#include <algorithm>
#include <cstdint>

#include <annulus/base/division.hpp>

namespace annulus::attention::host_simd {

/// In which order threads take tiles: heads go in waves that have a few tiles for every thread, so that the
/// keys and values of a wave stay in the shared cache; inside a wave every head's first tile comes first, so
/// that long tiles start early. Tiles of one head come in increasing order. Changes speed only, never
/// results.
class TicketOrder {
 public:
  TicketOrder(std::int64_t sequences, std::int64_t tiles, int threads)
      : sequences_(sequences),
        tiles_(tiles),
        wave_(std::clamp<std::int64_t>(ceil_divide<std::int64_t>(tiles_per_thread * threads, tiles), 1,
                                       sequences)) {}

  /// What the `ticket`-th of sequences · tiles pieces of work is.
  struct TicketTile {
    int sequence, tile;
  };
  TicketTile operator()(std::int64_t ticket) const {
    const std::int64_t first = ticket / (wave_ * tiles_) * wave_;
    const std::int64_t heads = std::min(wave_, sequences_ - first), rest = ticket - first * tiles_;
    return {static_cast<int>(first + rest % heads), static_cast<int>(rest / heads)};
  }

 private:
  static constexpr std::int64_t tiles_per_thread = 8;
  std::int64_t sequences_, tiles_, wave_;
};

}  // namespace annulus::attention::host_simd
