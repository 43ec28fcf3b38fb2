#pragma once

#include <algorithm>
#include <annulus/attention/kernels/local.hpp>

#include "attention/kernels/portable/launch.hpp"
#include "attention/kernels/portable/matrix.hpp"
#include "attention/kernels/portable/scratch.hpp"
#include "attention/kernels/portable/tile_mask.hpp"

namespace annulus::attention::portable {

/// The tiles that rows of Q, K and V fit.
template <class Exec, class T>
Tiles tiles_of(const Operands<T, Exec>& in) {
  return Tiles::of<Exec>(std::max(in.q.extent_int(3), in.v.extent_int(3)));
}

/// Walks a team, which owns the queries `q`, over the key tiles in `range` that the mask does not leave
/// empty. Each tile's K and V are in scratch.inner[0] and [1] (inner, width), its positions in scratch.keys
/// where it is partly masked, when `use(kv_rows, coverage)` is called.
template <class Exec, class T, class Use>
KOKKOS_FUNCTION void for_each_key_tile(const Member<Exec>& member, const Tiles& tiles,
                                       const Operands<T, Exec>& in, std::int64_t batch, std::int64_t kv_head,
                                       const PositionMap& q, RowRange range, const Scratch& scratch,
                                       const Use& use) {
  for (std::int64_t first = range.begin; first < range.end; first += tiles.inner) {
    const KeyPositions kv =
        in.keys().slice({first, Kokkos::min<std::int64_t>(first + tiles.inner, range.end)});
    const Coverage coverage = in.mask.classify(q, kv);
    if (coverage == Coverage::empty) continue;
    member.team_barrier();  // the last tile has been used
    const int kv_rows = static_cast<int>(kv.count());
    load_rows<Exec>(member, tiles, in.k.extent_int(3), HeadRows<const T>::of(in.k, batch, kv_head, first),
                    kv_rows, AllRows(), 1.0f, scratch.inner[0]);
    load_rows<Exec>(member, tiles, in.v.extent_int(3), HeadRows<const T>::of(in.v, batch, kv_head, first),
                    kv_rows, AllRows(), 1.0f, scratch.inner[1]);
    if (coverage == Coverage::partial) load_keys(member, kv, scratch.keys);
    member.team_barrier();
    use(kv_rows, coverage);
  }
}

}  // namespace annulus::attention::portable
