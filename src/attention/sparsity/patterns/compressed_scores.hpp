#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <utility>

#include "attention/kernels/scores.hpp"
#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/patterns/exponential_sums.hpp"
#include "attention/sparsity/patterns/infllm_v2.hpp"
#include "attention/sparsity/query_blocks/query_blocks.hpp"
#include "base/kokkos/memory/memory.hpp"

/// Scores of blocks by compressed keys (InfLLM-V2, arXiv 2509.24663).
namespace annulus::sparsity {

/// The compressed keys of all sequences, (batch, kv_heads, InfLlmV2::keys, head_dim), the same bits on all
/// ranks: the mean of two pooled_keys of `stride` tokens, rounded to T as InfLLM-V2 does. Collective.
template <class Exec, class T>
Owned<Array4<T, Exec>> compressed_keys(const Exec& exec, comm::Communicator& communicator,
                                       const PatternInputs<Exec, T>& in, const InfLlmV2& options) {
  const auto halves =
      pooled_keys<Exec, T>(exec, communicator, in.k, in.positions, in.tokens, options.stride, in.spans());
  const std::int64_t of_head = options.keys(in.tokens), width = in.k.extent_int(3);
  auto made = Owned<Array4<T, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                    "annulus::sparsity::compressed_keys", in.k.extent(0),
                                                    in.k.extent(1), of_head, width);
  const Array4<float, Exec> pooled = *halves;
  const Array4<T, Exec> keys = *made;
  Kokkos::parallel_for(
      "annulus::sparsity::compressed_keys", Kokkos::RangePolicy<Exec>(exec, 0, keys.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / width / of_head, key = i / width % of_head;
        const float* const half =
            pooled.data() + (head * static_cast<std::int64_t>(pooled.extent(2)) + key) * width + i % width;
        keys.data()[i] = T(0.5f * half[0] + 0.5f * half[width]);
      });
  return made;
}

namespace compressed_scores_detail {  // named: device compilers want lambdas and their captures to have
                                      // linkage

/// seen (1 + batch, rows): the last compressed key that ends at or before each position, −1 where none does,
/// and the first one of its document in each sequence, of whose first half only the document's tokens count.
template <class Exec>
void list_seen(const Exec& exec, const PositionMap& positions, std::int64_t stride,
               const DocumentSpans& spans, const Array2<std::int64_t, Exec>& seen) {
  const std::int64_t rows = positions.count;
  Kokkos::parallel_for(
      "annulus::sparsity::seen_compressed_keys", Kokkos::RangePolicy<Exec>(exec, 0, seen.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t which = i / rows, position = positions(i % rows),
                           last = InfLlmV2::keys_of(position + 1, stride) - 1;
        seen.data()[i] = which == 0 ? last : spans.of(which - 1, position).begin / stride;
      });
}

/// Scores of some rows of all heads, as attention::causal_scores makes them, and what makes probabilities of
/// them.
template <class Exec>
struct ScoredRows {
  Array3<float, Exec> scores;                // (heads, compressed keys, rows)
  Array1<float, Exec> maxima, inverse_sums;  // (heads · rows)
  Array2<std::int64_t, Exec> seen;           // (1 + batch, rows)
  PositionMap positions;                     // of the rows
  DocumentSpans spans;
  std::int64_t keys_of_block;
};

/// blocks (kv heads, blocks, rows), of rows `first` and on: of the compressed keys that have tokens of the
/// block the largest probability, rounded to fp32 and summed over the query heads of the kv head; −∞ where
/// the query sees none of them.
template <class Exec>
void score_blocks(const Exec& exec, const ScoredRows<Exec>& scored, const TopBlocks& of, std::int64_t first,
                  const Array3<float, Exec>& blocks) {
  constexpr std::int64_t blocks_of_thread = 8;  // neighbours share a key
  const auto all_lists = static_cast<std::int64_t>(blocks.extent(0)),
             parts = ceil_divide(static_cast<std::int64_t>(blocks.extent(1)), blocks_of_thread),
             group = static_cast<std::int64_t>(scored.scores.extent(0)) / all_lists,
             lists = all_lists / (static_cast<std::int64_t>(scored.seen.extent(0)) - 1);
  const std::int64_t rows = scored.positions.count;
  Kokkos::parallel_for(
      "annulus::sparsity::compressed_scores", Kokkos::RangePolicy<Exec>(exec, 0, all_lists * parts * rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / rows / parts, row = i % rows, position = scored.positions(row),
                           from = i / rows % parts * blocks_of_thread, behind = from + blocks_of_thread;
        const TopBlocks::Range candidates = of.candidates(scored.spans.of(list / lists, position), position);
        const std::int64_t begin = from > candidates.first ? from : candidates.first,
                           end = behind < candidates.end ? behind : candidates.end;
        if (begin >= end) return;
        const std::int64_t first_key = scored.seen(1 + list / lists, row), last_key = scored.seen(0, row);
        const auto probability = [&](std::int64_t key) {
          if (key < first_key || key > last_key) return -Kokkos::Experimental::infinity_v<float>;
          float sum = 0;
          for (std::int64_t head = list * group; head < (list + 1) * group; ++head) {
            const std::int64_t place = head * rows + row;
            sum += exponential(scored.scores(head, key, row) - scored.maxima(place)) *
                   scored.inverse_sums(place);
          }
          return sum;
        };
        std::int64_t key = begin * scored.keys_of_block;
        float last = probability(key - 1);
        for (std::int64_t block = begin; block < end; ++block) {
          float largest = last;
          for (; key < (block + 1) * scored.keys_of_block; ++key) {
            last = probability(key);
            largest = Kokkos::fmax(largest, last);
          }
          blocks(list, block, first + row) = largest;
        }
      });
}

}  // namespace compressed_scores_detail

/// Scores of the blocks among which the queries of rows `first` and on choose, (batch · kv heads,
/// blocks, rows): the largest probability of a compressed key that has tokens of the block, summed over the
/// query heads of the kv head. Products, exponentials and probabilities are of fp32, and a query's
/// exponentials are summed as whole numbers: the same wherever the rows lie. Others are not written. `keys`:
/// compressed_keys. `part`: rows whose products are there at once.
template <class Exec, class T>
void compressed_scores(const Exec& exec, const PatternInputs<Exec, T>& in, const InfLlmV2& options,
                       const Array4<const T, Exec>& keys, std::int64_t first, std::int64_t part,
                       const Array3<float, Exec>& blocks) {
  using namespace compressed_scores_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  constexpr auto workspace = MemoryCategory::workspace;
  const std::int64_t heads = in.q.extent_int(0) * std::int64_t{in.q.extent_int(1)},
                     keys_of_head = options.keys(in.tokens), last = first + blocks.extent_int(2);
  for (std::int64_t begin = first; begin < last; begin += part) {
    const std::int64_t end = std::min(begin + part, last), rows = end - begin;
    const PositionMap positions = in.positions.slice({begin, end});
    const auto seen = Owned<Array2<std::int64_t, Exec>>::uninitialized(
        exec, workspace, "annulus::sparsity::seen_compressed_keys", 1 + in.q.extent_int(0), rows);
    list_seen<Exec>(exec, positions, options.stride, in.spans(), *seen);
    const auto scores = Owned<Array3<float, Exec>>::uninitialized(
        exec, workspace, "annulus::sparsity::compressed_scores", heads, keys_of_head, rows);
    const auto maxima = Owned<Array1<float, Exec>>::uninitialized(
        exec, workspace, "annulus::sparsity::compressed_maxima", heads * rows);
    Kokkos::deep_copy(exec, *maxima, -Kokkos::Experimental::infinity_v<float>);
    // No later ones, which none of the rows sees.
    const attention::KeyTiles tiles = attention::KeyTiles::of(
        std::max<std::int64_t>(1, InfLlmV2::keys_of(positions.back() + 1, options.stride)));
    attention::causal_scores<Exec, T>(
        exec,
        {.q = Kokkos::subview(in.q, Kokkos::ALL, Kokkos::ALL, std::pair(begin, end), Kokkos::ALL),
         .k = keys,
         .k_positions = PositionMap{.hi = 1, .count = keys_of_head},
         .scale = in.scale,
         .q_listed = seen.view().data(),
         .q_first = seen.view().data() + rows,
         .tiles = tiles},
        *scores, *maxima);
    const int exponent = unit_exponent(keys_of_head);
    const auto sums = Owned<Array1<std::int64_t, Exec>>::zeroed(
        exec, workspace, "annulus::sparsity::compressed_sums", heads * rows);
    add_exponentials<Exec>(exec, tiles, 1, *scores, *maxima, exponent, *sums);
    const auto inverse_sums = Owned<Array1<float, Exec>>::uninitialized(
        exec, workspace, "annulus::sparsity::inverse_sums", heads * rows);
    invert<Exec>(exec, *sums, exponent, *inverse_sums);
    score_blocks<Exec>(
        exec, {*scores, *maxima, *inverse_sums, *seen, positions, in.spans(), options.block / options.stride},
        options.blocks_of(in.tokens), begin - first, blocks);
  }
}

}  // namespace annulus::sparsity
