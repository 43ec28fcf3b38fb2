#pragma once

#include <annulus/base/division.hpp>
#include <cstddef>

#include "attention/hopper/walk.hpp"

namespace annulus::attention::hopper {

/// An own tile visits at most so many runs: partial, whole, partial, cut where the way of adding changes.
inline constexpr int runs_of_interval = 6;

/// Cuts a workspace into arrays that start at multiples of 256 bytes. Without memory it only counts.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  template <class E>
  E* take(std::int64_t count) {
    std::byte* const here = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += round_up(static_cast<std::size_t>(count) * sizeof(E), 256);
    return reinterpret_cast<E*>(here);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

/// The tables of one walk and the counters behind it.
struct Workspace {
  RowSpan* spans;
  TileRun* runs;
  TileWalk* walks;
  int *first_visitors, *tickets, *turns;
  std::int64_t counters;  ///< at tickets: one, and the turns
  std::size_t bytes;

  /// `turns`: counters for each visited tile of each of as many heads; 0 where the order of additions is
  /// free.
  Workspace(void* memory, std::int64_t own_rows, std::int64_t other_rows, int own_tile, int other_tile,
            std::int64_t heads_with_turns) {
    Carver carver(memory);
    const std::int64_t own_tiles = ceil_divide(own_rows, own_tile),
                       other_tiles = ceil_divide(other_rows, other_tile);
    spans = carver.take<RowSpan>(own_rows);
    runs = carver.take<TileRun>(own_tiles * runs_of_interval);
    walks = carver.take<TileWalk>(own_tiles);
    first_visitors = carver.take<int>(other_tiles);
    counters = 64 + heads_with_turns * other_tiles;  // the ticket has a cache line of its own
    tickets = carver.take<int>(counters);
    turns = heads_with_turns > 0 ? tickets + 64 : nullptr;
    bytes = carver.bytes();
  }
};

}  // namespace annulus::attention::hopper
