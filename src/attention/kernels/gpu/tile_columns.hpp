#pragma once

#include <cstddef>
#include <type_traits>

/// Tiles of 64, 96 and 128 columns, which the kernels for tensor cores share. Those of 96 and 128 also take
/// narrower rows: columns behind the row's are zeros in the tile, and are not stored.
namespace annulus::attention::gpu {

/// Whether there are tiles for rows of so many columns.
constexpr bool has_tiles(std::size_t head_dim) {
  return head_dim >= 64 && head_dim <= 128 && head_dim % 8 == 0;
}

/// Calls action(columns of the tiles for rows of `head_dim`, whether rows have fewer), both as integral
/// constants, where has_tiles().
template <class Action>
auto with_tile_columns(int head_dim, const Action& action) {
  const auto with = [&](auto columns) {
    return head_dim < columns ? action(columns, std::true_type{}) : action(columns, std::false_type{});
  };
  if (head_dim == 64) return action(std::integral_constant<int, 64>{}, std::false_type{});
  if (head_dim <= 96) return with(std::integral_constant<int, 96>{});
  return with(std::integral_constant<int, 128>{});
}

}  // namespace annulus::attention::gpu
