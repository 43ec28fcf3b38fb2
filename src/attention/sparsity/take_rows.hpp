#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <type_traits>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/document_spans.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::sparsity {

/// Which rows are wanted: `count` positions, the same for all heads or, with `listed`, (lists of a batch · a
/// batch, count) of them; those from the end of the sequence on are none.
struct WantedRows {
  std::int64_t first = 0;  ///< without `listed`: first, first + 1, …
  const std::int64_t* listed = nullptr;
  std::int64_t count = 0;

  /// Position j of list `list`, counted over the batch.
  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t list, std::int64_t j) const {
    return listed == nullptr ? first + j : listed[list * count + j];
  }
};

/// Rows at listed positions for all lists, as WantedRows.
struct ListedRows {
  const std::int64_t* positions;  ///< in memory of the execution space; −1: none
  std::int64_t count;

  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t /*list*/, std::int64_t j) const {
    return positions[j];
  }
};

/// Rows of listed blocks, one block after the other, that are in the document of the block's first one, as
/// WantedRows.
struct RowsOfBlocks {
  const std::int64_t* blocks;  ///< in memory of the execution space
  std::int64_t block;          ///< tokens
  std::int64_t count;          ///< rows of all
  DocumentSpans spans;
  std::int64_t sequence;

  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t /*list*/, std::int64_t j) const {
    const std::int64_t first = blocks[j / block] * block, position = first + j % block;
    return position < spans.of(sequence, first).end ? position : -1;
  }
};

/// Rows 0, 1, …, those of each `tile` in reverse order, as WantedRows.
struct ReversedTiles {
  std::int64_t tile;   ///< tokens
  std::int64_t count;  ///< a multiple of `tile`

  KOKKOS_FUNCTION std::int64_t operator()(std::int64_t /*list*/, std::int64_t j) const {
    return j / tile * tile + (tile - 1 - j % tile);
  }
};

/// The row of `positions` that stands at `position`, or −1.
KOKKOS_INLINE_FUNCTION std::int64_t row_at(const PositionMap& positions, std::int64_t position) {
  const std::int64_t row = positions.rows_below(position);
  return row < positions.count && positions(row) == position ? row : -1;
}

namespace take_rows_detail {  // named: device compilers want lambdas and their captures to have linkage

template <int pack, class Exec, class T, class Wanted>
void take(const Exec& exec, const Array4<const T, Exec>& rows, const PositionMap& positions,
          const Wanted& wanted, const Array4<T, Exec>& out) {
  const auto lists = static_cast<std::int64_t>(out.extent(1)),
             packs = static_cast<std::int64_t>(out.extent(3)) / pack;  // of a row: neighbouring threads
  const auto lists_of_head = lists / static_cast<std::int64_t>(rows.extent(1));
  Kokkos::parallel_for(
      "annulus::sparsity::take_rows",
      Kokkos::RangePolicy<Exec>(exec, 0,
                                static_cast<std::int64_t>(out.extent(0)) * lists * wanted.count * packs),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / packs / wanted.count, j = i / packs % wanted.count;
        const std::int64_t batch = list / lists, head = list % lists, c = i % packs * pack;
        const std::int64_t row = row_at(positions, wanted(list, j));
        const auto taken = row < 0 ? Held<pack, T>{} : hold<pack>(&rows(batch, head / lists_of_head, row, c));
        store(&out(batch, head, j, c), taken);
      });
}

template <int pack, class Exec, class T>
void pick(const Exec& exec, const executor::PassingKeys<Exec, T>& passing, std::int64_t lists_of_head,
          const WantedRows& wanted, const Array4<T, Exec>& k, const Array4<T, Exec>& v) {
  // Neighbouring threads share a row. Most rows that are wanted are not among those that pass: few threads
  // look for each.
  constexpr std::int64_t threads_of_row = std::is_same_v<Exec, HostExec> ? 1 : 4;
  const auto rows_k = passing.k, rows_v = passing.v;
  const PositionMap positions = passing.positions;
  const std::int64_t first_batch = passing.first_batch, first_list = passing.first_kv_head * lists_of_head;
  const auto lists = static_cast<std::int64_t>(k.extent(1)),
             lists_here = static_cast<std::int64_t>(rows_k.extent(1)) * lists_of_head,
             width = static_cast<std::int64_t>(k.extent(3));
  Kokkos::parallel_for(
      "annulus::sparsity::pick_rows",
      Kokkos::RangePolicy<Exec>(
          exec, 0, static_cast<std::int64_t>(rows_k.extent(0)) * lists_here * wanted.count * threads_of_row),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t j = i / threads_of_row % wanted.count, place = i / threads_of_row / wanted.count;
        const std::int64_t here = place % lists_here, b = place / lists_here, head = here / lists_of_head,
                           batch = first_batch + b, list = first_list + here;
        const std::int64_t row = row_at(positions, wanted(batch * lists + list, j));
        if (row < 0) return;
        for (std::int64_t c = i % threads_of_row * pack; c < width; c += threads_of_row * pack) {
          store(&k(batch, list, j, c), hold<pack>(&rows_k(b, head, row, c)));
          store(&v(batch, list, j, c), hold<pack>(&rows_v(b, head, row, c)));
        }
      });
}

/// `part`: which of the lists that read a head.
template <int pack, class Exec>
void add(const Exec& exec, const Array4<const float, Exec>& from, const PositionMap& positions,
         const WantedRows& wanted, std::int64_t part, const Array4<float, Exec>& rows) {
  const auto lists = static_cast<std::int64_t>(from.extent(1)),
             heads = static_cast<std::int64_t>(rows.extent(1)),
             packs = static_cast<std::int64_t>(from.extent(3)) / pack;  // of a row: neighbouring threads
  const std::int64_t lists_of_head = lists / heads;
  Kokkos::parallel_for(
      "annulus::sparsity::add_rows",
      Kokkos::RangePolicy<Exec>(exec, 0,
                                static_cast<std::int64_t>(from.extent(0)) * heads * wanted.count * packs),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t j = i / packs % wanted.count, c = i % packs * pack;
        const std::int64_t batch = i / packs / wanted.count / heads, head = i / packs / wanted.count % heads;
        const std::int64_t list = head * lists_of_head + part;
        const std::int64_t row = row_at(positions, wanted(batch * lists + list, j));
        if (row < 0) return;
        Pack<pack> sum = load<pack>(&rows(batch, head, row, c));
        const Pack<pack> added = load<pack>(&from(batch, list, j, c));
        for (int e = 0; e < pack; ++e) sum[e] += added[e];
        store(&rows(batch, head, row, c), sum);
      });
}

}  // namespace take_rows_detail

/// out (batch, lists, count, head_dim): the wanted rows that this rank holds, and zeros for those of others,
/// so that the sum over all ranks is exact. rows (batch, heads, rows, head_dim): lists / heads lists read the
/// rows of one head.
template <class Exec, class T, class Wanted = WantedRows>
void take_rows(const Exec& exec, const Array4<const T, Exec>& rows, const PositionMap& positions,
               const Wanted& wanted, const Array4<T, Exec>& out) {
  const bool packs = in_packs<Exec, T>(static_cast<std::int64_t>(out.extent(3)), rows, out);
  with_pack_width<Exec, T>(packs, [&](auto width) {
    take_rows_detail::take<width(), Exec, T, Wanted>(exec, rows, positions, wanted, out);
  });
}

/// k, v (batch, lists, count, head_dim): the wanted rows among keys that pass by, at their places; what is
/// wanted of others stays as it is. K and V have rows of one width, and lists_of_head lists read one head.
template <class Exec, class T>
void pick_rows(const Exec& exec, const executor::PassingKeys<Exec, T>& passing, std::int64_t lists_of_head,
               const WantedRows& wanted, const Array4<T, Exec>& k, const Array4<T, Exec>& v) {
  const bool packs = in_packs<Exec, T>(static_cast<std::int64_t>(k.extent(3)), passing.k, passing.v, k, v);
  with_pack_width<Exec, T>(packs, [&](auto width) {
    take_rows_detail::pick<width(), Exec, T>(exec, passing, lists_of_head, wanted, k, v);
  });
}

/// The reverse of take_rows: adds row j of each list to the row of its head that stands at the wanted
/// position, where this rank holds it. The lists of one head one after another: their sum has an order.
template <class Exec>
void add_rows(const Exec& exec, const Array4<const float, Exec>& from, const PositionMap& positions,
              const WantedRows& wanted, const Array4<float, Exec>& rows) {
  const bool packs = in_packs<Exec, float>(static_cast<std::int64_t>(from.extent(3)), from, rows);
  with_pack_width<Exec, float>(packs, [&](auto width) {
    for (std::size_t part = 0; part < from.extent(1) / rows.extent(1); ++part)
      take_rows_detail::add<width(), Exec>(exec, from, positions, wanted, static_cast<std::int64_t>(part),
                                           rows);
  });
}

}  // namespace annulus::sparsity
