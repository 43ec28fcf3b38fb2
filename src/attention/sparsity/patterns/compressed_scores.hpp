#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/patterns/infllm_v2.hpp"
#include "attention/sparsity/query_blocks/query_blocks.hpp"
#include "base/kokkos/memory/memory.hpp"

/// Scores of blocks by compressed keys (InfLLM-V2, arXiv 2509.24663).
namespace annulus::sparsity {

namespace compressed_scores_detail {  // named: device compilers want lambdas and their captures to have
                                      // linkage

/// The compressed keys of the sequence that end at or before `position`.
KOKKOS_INLINE_FUNCTION std::int64_t keys_before(std::int64_t position, std::int64_t stride) {
  const std::int64_t halves = (position + 1) / stride;
  return halves > 1 ? halves - 1 : 0;
}

/// Some rows of all heads.
template <class Exec>
struct ScoredRows {
  /// (heads, rows, halves of compressed keys): products with the halves, then powers of these keys.
  RowTiles<Exec> values;
  Array2<double, Exec> sums;  // (heads, rows), of the powers
  PositionMap positions;      // of the rows
  std::int64_t stride;        // tokens
  std::int64_t heads;         // of a sequence
  DocumentSpans spans;

  /// Compressed keys first … end − 1, which a row of a head sees whole. The first half of the first one has
  /// of its tokens those of the document alone.
  KOKKOS_FUNCTION TopBlocks::Range keys(std::int64_t head, std::int64_t row) const {
    const std::int64_t position = positions(row), first = spans.of(head / heads, position).begin / stride,
                       end = keys_before(position, stride);
    return {first, end < first ? first : end};
  }
};

/// Makes powers and their sums of products; their quotients are probabilities: powers are rounded to fp32,
/// and added in fp64, key after key.
template <class Exec>
void raise(const Exec& exec, const ScoredRows<Exec>& scored, float scale) {
  const RowTiles<Exec>& values = scored.values;
  Kokkos::parallel_for(
      "annulus::sparsity::compressed_powers", policy_of_rows(exec, values.lists * values.rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / scored.values.rows, row = i % scored.values.rows;
        const TopBlocks::Range keys = scored.keys(head, row);
        float largest = -Kokkos::Experimental::infinity_v<float>, half = scored.values(head, row, keys.first);
        scored.values.for_each(head, row, keys.first + 1, keys.end + 1, [&](std::int64_t behind, float next) {
          float& value = scored.values(head, row, behind - 1);
          value = 0.5f * scale * (half + next);
          largest = Kokkos::fmax(largest, value);
          half = next;
        });
        double sum = 0;
        scored.values.for_each(head, row, keys.first, keys.end, [&](std::int64_t key, float value) {
          const float power = Kokkos::exp(value - largest);
          scored.values(head, row, key) = power;
          sum += static_cast<double>(power);
        });
        scored.sums(head, row) = sum;
      });
}

/// blocks (kv heads, rows, blocks): of the compressed keys that have tokens of the block the largest
/// probability, rounded to fp32 and summed over the query heads of the kv head; −∞ where the query sees none
/// of them.
template <class Exec>
void score_blocks(const Exec& exec, const ScoredRows<Exec>& scored, const TopBlocks& of,
                  const RowTiles<Exec>& blocks) {
  const std::int64_t group = scored.values.lists / blocks.lists, keys_of_block = of.block / scored.stride;
  Kokkos::parallel_for(
      "annulus::sparsity::compressed_scores", Kokkos::RangePolicy<Exec>(exec, 0, blocks.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto [list, row, block] = blocks.at(i);
        if (row >= blocks.rows) return;
        const std::int64_t position = scored.positions(row);
        const DocumentSpan document = scored.spans.of(list * group / scored.heads, position);
        const TopBlocks::Range candidates = of.candidates(document, position);
        if (block < candidates.first || block >= candidates.end) return;
        const TopBlocks::Range keys = scored.keys(list * group, row);
        const std::int64_t before = block * keys_of_block - 1,
                           first = before > keys.first ? before : keys.first,
                           behind = (block + 1) * keys_of_block;
        float largest = -Kokkos::Experimental::infinity_v<float>;
        for (std::int64_t key = first; key < behind && key < keys.end; ++key) {
          float sum = 0;
          for (std::int64_t head = list * group; head < (list + 1) * group; ++head)
            sum += static_cast<float>(static_cast<double>(scored.values(head, row, key)) /
                                      scored.sums(head, row));
          largest = Kokkos::fmax(largest, sum);
        }
        blocks.values.data()[i] = largest;
      });
}

}  // namespace compressed_scores_detail

/// Scores of the blocks among which the queries of rows `first` and on choose, (batch · kv heads, rows of a
/// part, blocks): the largest probability of a compressed key that has tokens of the block, summed over the
/// query heads of the kv head. Products and probabilities are of fp32, and sums over keys of fp64, key after
/// key: the same wherever the rows lie. Others are not written. `halves`: pooled_keys of in.k with `stride`.
template <class Exec, class T>
void compressed_scores(const Exec& exec, const PatternInputs<Exec, T>& in, const InfLlmV2& options,
                       const Array4<float, Exec>& halves, std::int64_t first, const RowTiles<Exec>& scores) {
  using namespace compressed_scores_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  const std::int64_t heads = in.q.extent_int(0) * std::int64_t{in.q.extent_int(1)}, rows = scores.rows,
                     halves_of_row = options.units(in.tokens);
  const auto products =
      RowTiles<Exec>::memory(exec, "annulus::sparsity::compressed_products", heads, rows, halves_of_row);
  const auto sums = Owned<Array2<double, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                               "annulus::sparsity::compressed_sums", heads,
                                                               round_up(rows, TopBlocks::tile_rows));
  const ScoredRows<Exec> scored{{*products, heads, rows, halves_of_row},
                                *sums,
                                in.positions.slice({first, first + rows}),
                                options.stride,
                                in.q.extent_int(1),
                                in.spans()};
  pooled_products<Exec, T>(exec, in.q, in.positions, halves, options.stride, first, scored.values);
  raise<Exec>(exec, scored, in.scale);
  score_blocks<Exec>(exec, scored, options.blocks_of(in.tokens), scores);
}

}  // namespace annulus::sparsity
