#pragma once

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/division.hpp>

#include "attention/kernels/portable/key_tiles.hpp"
#include "attention/kernels/portable/launch.hpp"
#include "attention/kernels/portable/portable.hpp"
#include "attention/kernels/portable/probabilities.hpp"

namespace annulus::attention::portable {

/// What both kernels of the backward pass read.
template <class Exec, class T>
struct BackwardInput {
  Operands<T, Exec> in;
  Strided4<const T, Exec> d_out;    // (batch, heads, q_rows, v_head_dim)
  Strided3<const float, Exec> lse;  // (batch, heads, q_rows)
  Strided3<const float, Exec> d;    // (batch, heads, q_rows)
};

/// dQ: a team owns a tile of queries and walks over the keys, so that nobody else adds to its rows.
template <class Exec, class T>
struct QueryGradientKernel {
  BackwardInput<Exec, T> input;
  Strided4<float, Exec> dq;  // (batch, heads, q_rows, head_dim)
  Tiles tiles;
  int head_dim, v_head_dim;
  std::int64_t group, heads, q_tiles;

  QueryGradientKernel(const BackwardInput<Exec, T>& input, const Strided4<float, Exec>& dq)
      : input(input),
        dq(dq),
        tiles(tiles_of<Exec>(input.in)),
        head_dim(input.in.q.extent_int(3)),
        v_head_dim(input.in.v.extent_int(3)),
        group(dq.extent(1) / input.in.k.extent(1)),
        heads(dq.extent(1)),
        q_tiles(ceil_divide(dq.extent(2), tiles.own)) {}

  std::int64_t leagues() const { return static_cast<std::int64_t>(dq.extent(0)) * heads * q_tiles; }

  KOKKOS_FUNCTION void operator()(const Member<Exec>& member) const {
    const Operands<T, Exec>& in = input.in;
    const TeamTile place = TeamTile::of(member.league_rank(), heads, q_tiles);
    const std::int64_t kv_head = place.head / group;
    const std::int64_t q_first = (q_tiles - 1 - place.tile) * tiles.own;  // causal: the longest first
    const PositionMap q =
        in.q_positions.slice({q_first, Kokkos::min<std::int64_t>(q_first + tiles.own, in.q_positions.count)});
    const int q_rows = static_cast<int>(q.count);
    const RowRange range = key_rows(in.mask, q, in.keys());
    if (range.empty()) return;

    const Scratch scratch(member, tiles);
    load_statistics(member, input.lse, input.d, place.batch, place.head, q_first, q_rows, tiles.own, scratch);
    load_queries(member, in.mask, q, scratch.queries);
    member.team_barrier();
    const auto has_keys = [&](int i) { return has_probabilities(scratch, i); };
    load_transposed(member, tiles, head_dim, HeadRows<const T>::of(in.q, place.batch, place.head, q_first),
                    q_rows, has_keys, in.scale, scratch.own[0]);
    load_transposed(member, tiles, v_head_dim,
                    HeadRows<const T>::of(input.d_out, place.batch, place.head, q_first), q_rows, has_keys,
                    1.0f, scratch.own[1]);
    const HeadRows<float> result = HeadRows<float>::of(dq, place.batch, place.head, q_first);

    const auto add_keys = [&](int kv_rows, Coverage coverage) {
      compute_probabilities<OwnedSide::queries, Exec>(member, tiles, head_dim, v_head_dim, scratch, in.mask,
                                                      in.soft_cap, q_rows, kv_rows, coverage);
      member.team_barrier();
      add_product<Exec>(member, tiles, head_dim, scratch.scores[1], scratch.inner[0], q_rows, kv_rows,
                        in.scale, result);
    };
    for_each_key_tile(member, tiles, in, place.batch, kv_head, q, range, scratch, add_keys);
  }
};

/// dK and dV: a team owns a tile of keys of one kv head and walks over the queries of all heads that read it.
template <class Exec, class T>
struct KeyGradientKernel {
  BackwardInput<Exec, T> input;
  Strided4<float, Exec> dk, dv;  // (batch, kv_heads, kv_rows, head_dim), and v_head_dim
  Tiles tiles;
  int head_dim, v_head_dim;
  std::int64_t group, kv_heads, kv_tiles;

  KeyGradientKernel(const BackwardInput<Exec, T>& input, const Strided4<float, Exec>& dk,
                    const Strided4<float, Exec>& dv)
      : input(input),
        dk(dk),
        dv(dv),
        tiles(tiles_of<Exec>(input.in)),
        head_dim(input.in.q.extent_int(3)),
        v_head_dim(input.in.v.extent_int(3)),
        group(input.in.q.extent(1) / dk.extent(1)),
        kv_heads(dk.extent(1)),
        kv_tiles(ceil_divide(dk.extent(2), tiles.own)) {}

  std::int64_t leagues() const { return static_cast<std::int64_t>(dk.extent(0)) * kv_heads * kv_tiles; }

  KOKKOS_FUNCTION void operator()(const Member<Exec>& member) const {
    const Operands<T, Exec>& in = input.in;
    const TeamTile place = TeamTile::of(member.league_rank(), kv_heads, kv_tiles);
    const std::int64_t kv_first = place.tile * tiles.own;
    const KeyPositions kv =
        in.keys().slice({kv_first, Kokkos::min<std::int64_t>(kv_first + tiles.own, in.kv_positions.count)});
    const int kv_rows = static_cast<int>(kv.count());
    const RowRange range = query_rows(in.mask, in.q_positions, kv);
    if (range.empty()) return;

    const Scratch scratch(member, tiles);
    load_transposed(member, tiles, head_dim, HeadRows<const T>::of(in.k, place.batch, place.head, kv_first),
                    kv_rows, AllRows(), 1.0f, scratch.own[0]);
    load_transposed(member, tiles, v_head_dim, HeadRows<const T>::of(in.v, place.batch, place.head, kv_first),
                    kv_rows, AllRows(), 1.0f, scratch.own[1]);
    load_keys(member, kv, scratch.keys);
    const HeadRows<float> dk_rows = HeadRows<float>::of(dk, place.batch, place.head, kv_first);
    const HeadRows<float> dv_rows = HeadRows<float>::of(dv, place.batch, place.head, kv_first);

    for (std::int64_t head = place.head * group; head < (place.head + 1) * group; ++head) {
      for (std::int64_t first = range.begin; first < range.end; first += tiles.inner) {
        const PositionMap q =
            in.q_positions.slice({first, Kokkos::min<std::int64_t>(first + tiles.inner, range.end)});
        const Coverage coverage = in.mask.classify(q, kv);
        if (coverage == Coverage::empty) continue;
        member.team_barrier();  // the last tile has been used
        const int q_rows = static_cast<int>(q.count);
        load_statistics(member, input.lse, input.d, place.batch, head, first, q_rows, q_rows, scratch);
        if (coverage == Coverage::partial) load_queries(member, in.mask, q, scratch.queries);
        member.team_barrier();
        const auto has_keys = [&](int i) { return has_probabilities(scratch, i); };
        load_rows<Exec>(member, tiles, head_dim, HeadRows<const T>::of(in.q, place.batch, head, first),
                        q_rows, has_keys, in.scale, scratch.inner[0]);
        load_rows<Exec>(member, tiles, v_head_dim,
                        HeadRows<const T>::of(input.d_out, place.batch, head, first), q_rows, has_keys, 1.0f,
                        scratch.inner[1]);
        member.team_barrier();
        compute_probabilities<OwnedSide::keys, Exec>(member, tiles, head_dim, v_head_dim, scratch, in.mask,
                                                     in.soft_cap, kv_rows, q_rows, coverage);
        member.team_barrier();
        add_product<Exec>(member, tiles, v_head_dim, scratch.scores[0], scratch.inner[1], kv_rows, q_rows,
                          1.0f, dv_rows);
        add_product<Exec>(member, tiles, head_dim, scratch.scores[1], scratch.inner[0], kv_rows, q_rows, 1.0f,
                          dk_rows);
      }
    }
  }
};

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays) {
  const BackwardInput<Exec, T> input{in, arrays.d_out, arrays.lse, arrays.d};
  const QueryGradientKernel<Exec, T> queries(input, arrays.dq);
  launch(exec, "annulus::attention::portable::backward_dq", queries.leagues(), queries.tiles, queries);
  const KeyGradientKernel<Exec, T> keys(input, arrays.dk, arrays.dv);
  launch(exec, "annulus::attention::portable::backward_dkv", keys.leagues(), keys.tiles, keys);
}

}  // namespace annulus::attention::portable
