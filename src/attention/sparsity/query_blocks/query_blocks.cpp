#include "attention/sparsity/query_blocks/query_blocks.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <bit>
#include <type_traits>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "attention/sparsity/bits.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::sparsity {

namespace query_blocks_detail {  // named: device compilers want lambdas and their captures to have linkage

/// This rank's keys, block by block.
template <class Exec, class T>
struct KeyBlocks {
  Array4<const T, Exec> k;
  PositionMap positions;
  std::int64_t tokens, block, blocks;
  DocumentSpans spans;

  std::int64_t heads() const { return static_cast<std::int64_t>(k.extent(0) * k.extent(1)); }
  std::int64_t width() const { return static_cast<std::int64_t>(k.extent(3)); }
  /// Positions of the keys that make the mean of a block; `head` counts over the batch.
  KOKKOS_FUNCTION DocumentSpan of_block(std::int64_t head, std::int64_t which) const {
    const std::int64_t first = which * block, end = first + block < tokens ? first + block : tokens,
                       begin = spans.of(head / static_cast<std::int64_t>(k.extent(1)), end - 1).begin;
    return {begin > first ? begin : first, end};
  }
  /// Calls f(value) for channel `channel` of the keys of a block.
  template <class F>
  KOKKOS_FUNCTION void for_each(std::int64_t head, std::int64_t which, std::int64_t channel,
                                const F& f) const {
    const auto rows = static_cast<std::int64_t>(k.extent(2)),
               columns = static_cast<std::int64_t>(k.extent(3));
    const DocumentSpan keys = of_block(head, which);
    const std::int64_t end = positions.rows_below(keys.end);
    for (std::int64_t row = positions.rows_below(keys.begin); row < end; ++row)
      f(static_cast<float>(k.data()[(head * rows + row) * columns + channel]));
  }
};

/// magnitudes (heads · blocks): raised to the largest of each block, ∞ where a key is not finite.
template <class Exec, class T>
void raise_magnitudes(const Exec& exec, const KeyBlocks<Exec, T>& keys,
                      const Array1<float, Exec>& magnitudes) {
  const std::int64_t width = keys.width(), blocks = keys.blocks;
  Kokkos::parallel_for(
      "annulus::sparsity::key_magnitudes", Kokkos::RangePolicy<Exec>(exec, 0, keys.heads() * blocks * width),
      KOKKOS_LAMBDA(const std::int64_t i) {
        constexpr float infinity = Kokkos::Experimental::infinity_v<float>;
        float largest = 0;
        keys.for_each(i / width / blocks, i / width % blocks, i % width, [&](float value) {
          const float magnitude = Kokkos::fabs(value);
          if (!(magnitude < infinity)) largest = infinity;
          if (magnitude > largest) largest = magnitude;
        });
        if (largest > 0) Kokkos::atomic_max(&magnitudes(i / width), largest);
      });
}

/// The power of two by which keys of at most this magnitude become whole numbers, of which `block` sum to
/// less than 2⁶²; 0: there is none.
KOKKOS_INLINE_FUNCTION double units_of(float magnitude, int block_bits) {
  if (!(magnitude < Kokkos::Experimental::infinity_v<float>)) return 0;
  // Below 2^exponent, by the number's bits; subnormal ones are below 2⁻¹²⁶.
  const int exponent = static_cast<int>(Kokkos::bit_cast<std::uint32_t>(magnitude) >> 23) - 126;
  return Kokkos::bit_cast<double>(static_cast<std::uint64_t>(1023 + 61 - block_bits - exponent) << 52);
}

/// sums (heads, blocks, channels) of this rank's keys, in units.
template <class Exec, class T>
void add_keys(const Exec& exec, const KeyBlocks<Exec, T>& keys, const Array1<float, Exec>& magnitudes,
              int block_bits, const Array1<std::int64_t, Exec>& sums) {
  const std::int64_t width = keys.width(), blocks = keys.blocks;
  Kokkos::parallel_for(
      "annulus::sparsity::key_sums", Kokkos::RangePolicy<Exec>(exec, 0, sums.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const double units = units_of(magnitudes(i / width), block_bits);
        std::int64_t sum = 0;
        if (units > 0)
          keys.for_each(i / width / blocks, i / width % blocks, i % width, [&](float value) {
            sum += static_cast<std::int64_t>(static_cast<double>(value) * units);
          });
        sums(i) = sum;
      });
}

template <class Exec, class T>
void divide(const Exec& exec, const KeyBlocks<Exec, T>& keys, const Array1<float, Exec>& magnitudes,
            int block_bits, const Array1<std::int64_t, Exec>& sums, const Array4<float, Exec>& pooled) {
  const std::int64_t width = keys.width(), blocks = keys.blocks;
  Kokkos::parallel_for(
      "annulus::sparsity::pooled_keys", Kokkos::RangePolicy<Exec>(exec, 0, sums.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const double units = units_of(magnitudes(i / width), block_bits);
        const std::int64_t count = keys.of_block(i / width / blocks, i / width % blocks).tokens();
        pooled.data()[i] =
            units > 0 ? static_cast<float>(static_cast<double>(sums(i)) / units / static_cast<double>(count))
                      : Kokkos::Experimental::quiet_NaN_v<float>;
      });
}

/// Products of queries and pooled keys, (heads, blocks, rows of a part), of rows `first` and on, as far as
/// the query is behind the block: summed in fp32 channel by channel, `pack` of them at a time. Others are not
/// written.
template <int pack, class Exec, class T>
void multiply(const Exec& exec, const Array4<const T, Exec>& q, const PositionMap& positions,
              const Array4<float, Exec>& pooled, std::int64_t block, std::int64_t first,
              const Array3<float, Exec>& products) {
  // What a thread has: sums that do not wait for each other. On devices rows of several tiles share the
  // blocks that are loaded, which all threads of a tile load together.
  constexpr std::int64_t lanes = annulus::detail::host_memory<Exec> ? 1 : TopBlocks::tile_rows;
  constexpr int tiles_at_once = lanes == 1 ? 1 : 2, blocks_at_once = lanes == 1 ? 8 : 16;
  const auto blocks = static_cast<std::int64_t>(products.extent(1)),
             rows = static_cast<std::int64_t>(products.extent(2)),
             all_rows = static_cast<std::int64_t>(q.extent(2)),
             width = static_cast<std::int64_t>(q.extent(3)),
             group = static_cast<std::int64_t>(q.extent(1) / pooled.extent(1)),
             parts = ceil_divide(blocks, blocks_at_once), tiles = ceil_divide(rows, tiles_at_once * lanes);
  Kokkos::parallel_for(
      "annulus::sparsity::pooled_products",
      Kokkos::RangePolicy<Exec>(exec, 0,
                                static_cast<std::int64_t>(products.extent(0)) * tiles * parts * lanes),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t tile = i / lanes / parts, head = tile / tiles,
                           row = tile % tiles * tiles_at_once * lanes + i % lanes,
                           from = i / lanes % parts * blocks_at_once,
                           there = blocks - from < blocks_at_once ? blocks - from : blocks_at_once;
        // Blocks that a row's query is behind; none, where there is no row.
        std::int64_t behind[tiles_at_once], most = 0;
        const T* queries[tiles_at_once];
        for (int t = 0; t < tiles_at_once; ++t) {
          const std::int64_t of = row + t * lanes < rows ? first + row + t * lanes : -1;
          behind[t] = of < 0 ? 0 : (positions(of) + 1) / block;
          queries[t] = q.data() + (head * all_rows + (of < 0 ? first : of)) * width;
          most = behind[t] > most ? behind[t] : most;
        }
        if (most <= from) return;
        const float* const keys = pooled.data() + (head / group * blocks + from) * width;
        float sums[tiles_at_once][blocks_at_once] = {};
        const auto add = [&](auto whole) {
          for (std::int64_t c = 0; c < width; c += pack) {
            Pack<pack> query[tiles_at_once];
            for (int t = 0; t < tiles_at_once; ++t) query[t] = load<pack>(queries[t] + c);
            for (int n = 0; n < blocks_at_once; ++n) {
              const Pack<pack> key = load<pack>(keys + (whole() || n < there ? n : 0) * width + c);
              for (int t = 0; t < tiles_at_once; ++t)
                for (int e = 0; e < pack; ++e) sums[t][n] = Kokkos::fma(query[t][e], key[e], sums[t][n]);
            }
          }
        };
        if (there == blocks_at_once) {
          add(std::true_type());
        } else {
          add(std::false_type());
        }
        for (int t = 0; t < tiles_at_once; ++t)
          for (int n = 0; n < blocks_at_once; ++n)
            if (from + n < behind[t] && n < there) products(head, from + n, row + t * lanes) = sums[t][n];
      });
}

/// Calls f(block, score) for blocks first … end − 1 of a row, in order. On devices many are loaded before the
/// first call.
template <class Exec, class F>
KOKKOS_FUNCTION void for_each_score(const Array3<float, Exec>& scores, std::int64_t list, std::int64_t row,
                                    std::int64_t first, std::int64_t end, const F& f) {
  constexpr int ahead = annulus::detail::host_memory<Exec> ? 1 : 16;
  const auto rows = static_cast<std::int64_t>(scores.extent(2));
  for (std::int64_t block = first; block < end; block += ahead) {
    const int count = end - block < ahead ? static_cast<int>(end - block) : ahead;
    const float* const from = &scores(list, block, row);
    float loaded[ahead];  // without branches, so that all loads are under way at once
    for (int j = 0; j < ahead; ++j) loaded[j] = from[(j < count ? j : 0) * rows];
    for (int j = 0; j < ahead; ++j)
      if (j < count) f(block + j, loaded[j]);
  }
}

}  // namespace query_blocks_detail

template <class Exec, class T>
Owned<Array4<float, Exec>> pooled_keys(const Exec& exec, comm::Communicator& communicator,
                                       const Array4<const T, Exec>& k, const PositionMap& positions,
                                       std::int64_t tokens, std::int64_t block, const DocumentSpans& spans) {
  using namespace query_blocks_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  const Region region("annulus::sparsity::pooled_keys");
  constexpr auto workspace = MemoryCategory::workspace;
  const KeyBlocks<Exec, T> keys{k, positions, tokens, block, ceil_divide(tokens, block), spans};
  const int block_bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(block)));
  const auto magnitudes = Owned<Array1<float, Exec>>::zeroed(
      exec, workspace, "annulus::sparsity::key_magnitudes", keys.heads() * keys.blocks);
  raise_magnitudes<Exec, T>(exec, keys, *magnitudes);
  communicator.all_reduce(Queue(exec), *magnitudes, comm::ReduceOp::max);
  const auto sums = Owned<Array1<std::int64_t, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::key_sums", keys.heads() * keys.blocks * keys.width());
  add_keys<Exec, T>(exec, keys, *magnitudes, block_bits, *sums);
  communicator.all_reduce(Queue(exec), *sums);
  auto pooled = Owned<Array4<float, Exec>>::uninitialized(exec, workspace, "annulus::sparsity::pooled_keys",
                                                          k.extent(0), k.extent(1), keys.blocks, k.extent(3));
  divide<Exec, T>(exec, keys, *magnitudes, block_bits, *sums, *pooled);
  return pooled;
}

template <class Exec>
void choose_blocks(const Exec& exec, const Array3<float, Exec>& scores, const PositionMap& positions,
                   const TopBlocks& of, std::int64_t first, const Array3<std::uint32_t, Exec>& chosen,
                   std::int64_t lists, const DocumentSpans& spans) {
  const auto rows = static_cast<std::int64_t>(scores.extent(2));
  // Small blocks of threads: rows may be too few for larger ones on each multiprocessor of a GPU.
  Kokkos::parallel_for(
      "annulus::sparsity::choose_blocks",
      Kokkos::RangePolicy<Exec, Kokkos::LaunchBounds<64>>(exec, 0,
                                                          static_cast<std::int64_t>(scores.extent(0)) * rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        constexpr float infinity = Kokkos::Experimental::infinity_v<float>;
        const std::int64_t list = i / rows, row = i % rows, position = positions(first + row);
        const DocumentSpan document = spans.of(list / lists, position);
        const TopBlocks::Range candidates = of.candidates(document, position);
        const auto for_each = [&](std::int64_t from, std::int64_t end, const auto& f) {
          query_blocks_detail::for_each_score<Exec>(
              scores, list, row, from, end,
              [&](std::int64_t b, float score) { f(b, score == score ? score : -infinity); });
        };
        // The last one that is chosen: the next one, in falling order, again and again. Candidates lie in
        // parts, of which each knows its highest score that is not chosen yet: only the part of the next one
        // is read again.
        constexpr int parts = 32;
        const std::int64_t part = round_up(ceil_divide(candidates.count(), std::int64_t{parts}),
                                           std::int64_t{16}),
                           best = candidates.count() < of.best ? candidates.count() : of.best;
        float last = infinity, highest[parts];
        std::int64_t last_block = -1;
        std::uint32_t left = 0;  // parts that are not chosen as a whole
        // Calls f(block, score) for what is left of a part.
        const auto for_each_left = [&](int of_part, const auto& f) {
          const std::int64_t from = candidates.first + of_part * part, end = from + part;
          for_each(from, end < candidates.end ? end : candidates.end, [&](std::int64_t b, float score) {
            if (score < last || (score == last && b > last_block)) f(b, score);
          });
        };
        const auto highest_left = [&](int of_part, bool& some) {
          float found = -infinity;
          some = false;
          for_each_left(of_part, [&](std::int64_t, float score) {
            some = true;
            found = score > found ? score : found;
          });
          return found;
        };
        for (int n = 0; n < parts && best > 0; ++n) {
          bool some = false;
          highest[n] = highest_left(n, some);
          left |= some ? 1u << n : 0u;
        }
        for (std::int64_t chosen_before = 0; chosen_before < best; ++chosen_before) {
          int next = -1;
          float score_of_next = -infinity;
          for (int n = 0; n < parts; ++n) {
            if ((left >> n & 1u) == 0 || (next >= 0 && highest[n] <= score_of_next)) continue;
            next = n;
            score_of_next = highest[n];
          }
          std::int64_t block_of_next = -1;
          for_each_left(next, [&](std::int64_t b, float score) {
            if (block_of_next < 0 && score == score_of_next) block_of_next = b;
          });
          last = score_of_next;
          last_block = block_of_next;
          bool some = false;
          const float behind = highest_left(next, some);
          for (int n = 0; n < parts; ++n) highest[n] = n == next ? behind : highest[n];  // all in registers
          if (!some) left &= ~(1u << next);
        }
        std::uint32_t* const words = &chosen(list, position, 0);
        const std::int64_t own = position / of.block;
        std::uint32_t word = 0;
        for_each(document.begin / of.block, own + 1, [&](std::int64_t b, float score) {
          const bool candidate = candidates.first <= b && b < candidates.end;
          const bool good = best > 0 && (score > last || (score == last && b <= last_block));
          if (good || !candidate) word |= 1u << (b % word_bits);
          if (b != own && (b + 1) % word_bits != 0) return;
          words[b / word_bits] |= word;
          word = 0;
        });
      });
}

template <class Exec>
void choose_blocks_by_scores(const Exec& exec, const Array4<const float, Exec>& scores,
                             const PositionMap& positions, const TopBlocks& of,
                             const Array3<std::uint32_t, Exec>& chosen, const DocumentSpans& spans) {
  const auto lists = static_cast<std::int64_t>(scores.extent(1)),
             all = static_cast<std::int64_t>(scores.extent(0)) * lists,
             rows = static_cast<std::int64_t>(scores.extent(2));
  const std::int64_t part = TopBlocks::rows_at_once(all * of.blocks(), rows);
  for (std::int64_t first = 0; first < rows; first += part) {
    const std::int64_t some = std::min(part, rows - first);
    const auto memory = Owned<Array3<float, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::sparsity::block_scores", all, of.blocks(), some);
    const Array3<float, Exec> of_part = *memory;
    Kokkos::parallel_for(
        "annulus::sparsity::take_scores", Kokkos::RangePolicy<Exec>(exec, 0, of_part.size()),
        KOKKOS_LAMBDA(const std::int64_t i) {
          const auto blocks = static_cast<std::int64_t>(of_part.extent(1));
          const std::int64_t list = i / some / blocks;
          of_part.data()[i] = scores(list / lists, list % lists, first + i % some, i / some % blocks);
        });
    choose_blocks<Exec>(exec, of_part, positions, of, first, chosen, lists, spans);
  }
}

template <class Exec, class T>
void choose_top_blocks(const Exec& exec, const Array4<const T, Exec>& q, const PositionMap& positions,
                       const Array4<float, Exec>& pooled, const TopBlocks& of,
                       const Array3<std::uint32_t, Exec>& chosen, const DocumentSpans& spans) {
  const Region region("annulus::sparsity::choose_top_blocks");
  const auto heads = static_cast<std::int64_t>(q.extent(0) * q.extent(1)),
             rows = static_cast<std::int64_t>(q.extent(2));
  require(
      of.block > 0 && of.best >= 0 && static_cast<std::int64_t>(pooled.extent(2)) == of.blocks() &&
          pooled.extent(0) == q.extent(0) && pooled.extent(1) > 0 && q.extent(1) % pooled.extent(1) == 0,
      "top blocks: {} pooled keys of {} kv heads for {} heads, {} tokens in blocks of {}, and the {} best: "
      "there must be one for each block, and kv heads that divide the heads",
      pooled.extent(2), pooled.extent(1), q.extent(1), of.tokens, of.block, of.best);
  require(static_cast<std::int64_t>(chosen.extent(0)) == heads &&
              static_cast<std::int64_t>(chosen.extent(1)) == of.tokens &&
              static_cast<std::int64_t>(chosen.extent(2)) == of.words(),
          "top blocks: bits ({}, {}, {}) for {} heads of {} tokens with {} blocks: they must be (heads, "
          "tokens, words of 32 blocks)",
          chosen.extent(0), chosen.extent(1), chosen.extent(2), heads, of.tokens, of.blocks());
  const bool packs = !annulus::detail::host_memory<Exec> &&  // the host's compiler makes vectors of blocks
                     in_packs<Exec, T>(static_cast<std::int64_t>(q.extent(3)), q, pooled);
  const std::int64_t part = TopBlocks::rows_at_once(heads * of.blocks(), rows);
  for (std::int64_t first = 0; first < rows; first += part) {
    const std::int64_t some = std::min(part, rows - first);
    const auto products = Owned<Array3<float, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::sparsity::block_scores", heads, of.blocks(), some);
    with_pack_width<Exec, T>(packs, [&](auto pack) {
      query_blocks_detail::multiply<pack(), Exec, T>(exec, q, positions, pooled, of.block, first, *products);
    });
    choose_blocks<Exec>(exec, *products, positions, of, first, chosen, static_cast<std::int64_t>(q.extent(1)),
                        spans);
  }
}

#define ANNULUS_INSTANTIATE(EXEC, T)                                                                      \
  template Owned<Array4<float, EXEC>> pooled_keys<EXEC, T>(                                               \
      const EXEC&, comm::Communicator&, const Array4<const T, EXEC>&, const PositionMap&, std::int64_t,   \
      std::int64_t, const DocumentSpans&);                                                                \
  template void choose_top_blocks<EXEC, T>(const EXEC&, const Array4<const T, EXEC>&, const PositionMap&, \
                                           const Array4<float, EXEC>&, const TopBlocks&,                  \
                                           const Array3<std::uint32_t, EXEC>&, const DocumentSpans&);
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

#define ANNULUS_INSTANTIATE(EXEC)                                                                       \
  template void choose_blocks<EXEC>(const EXEC&, const Array3<float, EXEC>&, const PositionMap&,        \
                                    const TopBlocks&, std::int64_t, const Array3<std::uint32_t, EXEC>&, \
                                    std::int64_t, const DocumentSpans&);                                \
  template void choose_blocks_by_scores<EXEC>(const EXEC&, const Array4<const float, EXEC>&,            \
                                              const PositionMap&, const TopBlocks&,                     \
                                              const Array3<std::uint32_t, EXEC>&, const DocumentSpans&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
