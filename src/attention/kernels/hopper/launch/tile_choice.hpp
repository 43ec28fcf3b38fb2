#pragma once

#include <annulus/base/dtype.hpp>
#include <cstddef>
#include <type_traits>

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/gpu/tile_columns.hpp"
#include "attention/kernels/hopper/tile/form.hpp"
#include "attention/kernels/hopper/tile/shapes.hpp"

/// Which tiles a call takes.
namespace annulus::attention::hopper {

/// Whether there are tiles for rows of so many columns.
constexpr bool has_tiles(std::size_t head_dim) {
  return gpu::has_tiles(head_dim) || head_dim == 256;
}

/// Calls action(columns of the tiles for rows of `head_dim`, whether rows have fewer), both as integral
/// constants, where has_tiles().
template <class Action>
auto with_tile_columns(int head_dim, const Action& action) {
  if (head_dim == 256) return action(std::integral_constant<int, 256>{}, std::false_type{});
  return gpu::with_tile_columns(head_dim, action);
}

/// Calls action(columns of the tiles for `in`, their form), both as integral constants, where the kernel
/// takes it (hopper::applies).
template <class T, class Action>
auto with_tiles(const gpu::Input<T>& in, const Action& action) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    if (in.head_dim == 192)
      return action(std::integral_constant<int, 192>{}, std::integral_constant<TileForm, TileForm::whole>{});
  }
  const auto with = [&](auto columns, auto clipped) {
    constexpr TileForm form = clipped ? TileForm::clipped : TileForm::whole;
    if constexpr (std::is_same_v<T, bfloat16> && !clipped && has_capped_tiles(columns)) {
      if (in.soft_cap > 0.0f) return action(columns, std::integral_constant<TileForm, TileForm::capped>{});
    }
    return action(columns, std::integral_constant<TileForm, form>{});
  };
  return with_tile_columns(in.head_dim, with);
}

/// with_tiles() of the forward pass, which has sinks only where hopper::joins_sinks().
template <class T, class Action>
auto with_tiles(const gpu::ForwardProblem<T>& problem, const Action& action) {
  return with_tiles(problem.in, [&](auto columns, auto form) {
    if constexpr (std::is_same_v<T, bfloat16> && form == TileForm::whole && has_sink_tiles(columns)) {
      if (problem.sinks != nullptr)
        return action(columns, std::integral_constant<TileForm, TileForm::sinks>{});
    }
    return action(columns, form);
  });
}

/// Why a mask takes smaller tiles than others (tile/shapes.hpp).
enum class SmallTiles {
  none,
  narrow_window,   ///< forward: large tiles would be masked for the most part
  lists_of_heads,  ///< large tiles would cut across the blocks of a head's list
  shared_lists,    ///< as lists_of_heads; each two heads that read the same keys have a list in common
};

template <class T>
SmallTiles small_tiles(const gpu::Input<T>& in) {
  const MaskRule& mask = in.mask;
  const int group = in.heads / in.kv_heads;
  if (!mask.has_blocks()) {
    constexpr std::int64_t narrow = 256;  // where both shapes were expected to take as long
    const bool takes = has_narrow_window_tiles(in.head_dim) && group % 4 == 0 && in.soft_cap == 0.0f;
    const bool window = mask.left < narrow && mask.right < narrow && mask.left + mask.right < narrow;
    return takes && window && mask.dilation == 1 ? SmallTiles::narrow_window : SmallTiles::none;
  }
  if (!mask.lists_of_heads() || in.kv_listed != nullptr || mask.block_size % 128 == 0)
    return SmallTiles::none;
  const auto in_pairs = [](std::int64_t heads) { return heads % 2 == 0; };
  return in_pairs(mask.heads_of_list) && in_pairs(group) ? SmallTiles::shared_lists
                                                         : SmallTiles::lists_of_heads;
}

/// Tiles of block lists that each two heads have in common.
template <int head_dim>
using SharedListsTile =
    std::conditional_t<head_dim <= 128, ForwardTile<head_dim, 2, 128, 2, 2>, ForwardTile<head_dim, 2, 64, 2>>;
/// Shape for block lists of each head.
template <int head_dim>
using HeadListsTile =
    std::conditional_t<head_dim <= 128, ForwardTile<head_dim, 1, 64>, ForwardTile<head_dim, 2, 64>>;

/// Shape for windows that are narrower than the shape for all else.
template <int head_dim>
using NarrowWindowTile = ForwardTile<head_dim, 4, 64, 4, 1, 4>;

/// Calls action(the tile shape for this input, whether heads have block lists of their own).
template <int head_dim, TileForm form = TileForm::whole, class T, class Action>
auto with_forward_tile(const gpu::Input<T>& in, const Action& action) {
  const SmallTiles small = small_tiles(in);
  if constexpr (has_narrow_window_tiles(head_dim) && form != TileForm::capped && form != TileForm::clipped) {
    if (small == SmallTiles::narrow_window) return action(NarrowWindowTile<head_dim>{}, std::false_type{});
  }
  if constexpr (takes_block_lists(head_dim) && form != TileForm::capped && form != TileForm::sinks) {
    using ForLists = ForwardTile<head_dim, 2, head_dim <= 128 ? 128 : 64>;
    if (small == SmallTiles::shared_lists) return action(SharedListsTile<head_dim>{}, std::true_type{});
    if (small == SmallTiles::lists_of_heads) return action(HeadListsTile<head_dim>{}, std::true_type{});
    if (in.mask.lists_of_heads()) return action(ForLists{}, std::true_type{});
    if (in.mask.block_row_starts != nullptr) return action(ForLists{}, std::false_type{});
  }
  return action(ForwardTile<head_dim>{}, std::false_type{});
}

/// Where dQ has a kernel of its own, its tables take the place of those of dK and dV when these are done.
/// Calls action(the tile shape of the kernel of dQ, whether heads have block lists of their own). Up to head
/// dimension 128 there is one for fine lists alone.
template <int head_dim, TileForm form = TileForm::whole, class T, class Action>
auto with_query_tile(const gpu::Input<T>& in, const Action& action) {
  // 64 keys at once: registers and shared memory have no room for more.
  using Shared = ForwardTile<head_dim, 2, 64, 2>;
  using Plain = ForwardTile<head_dim, 2, 64>;
  if constexpr (form == TileForm::capped || !takes_block_lists(head_dim)) {
    return action(Plain{}, std::false_type{});
  } else {
    if (small_tiles(in) == SmallTiles::shared_lists) return action(Shared{}, std::true_type{});
    if constexpr (head_dim > 128) {
      if (!in.mask.lists_of_heads()) return action(Plain{}, std::false_type{});
    }
    return action(HeadListsTile<head_dim>{}, std::true_type{});
  }
}

/// Calls action(the tile shape of the kernel of dK and dV).
template <int head_dim, TileForm form = TileForm::whole, class T, class Action>
auto with_key_tile(const gpu::Input<T>& in, const Action& action) {
  using Fine = BackwardTile<head_dim, false>;
  using WithoutLists =
      std::conditional_t<head_dim <= 64, BackwardTile<head_dim, true, 3>, BackwardTile<head_dim>>;
  if constexpr (form == TileForm::capped || !takes_block_lists(head_dim)) {
    return action(WithoutLists{});
  } else {
    if (!in.mask.has_blocks()) return action(WithoutLists{});
    return small_tiles(in) != SmallTiles::none ? action(Fine{}) : action(BackwardTile<head_dim>{});
  }
}

}  // namespace annulus::attention::hopper
