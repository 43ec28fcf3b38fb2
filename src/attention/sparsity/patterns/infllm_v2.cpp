#include "attention/sparsity/patterns/infllm_v2.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>

#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/query_blocks/of_queries.hpp"
#include "attention/sparsity/query_blocks/query_blocks.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace infllm_v2_detail {  // named: device compilers want lambdas and their captures to have linkage

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

template <class Exec, class T>
class InfLlmV2Pattern final : public Pattern<Exec, T> {
 public:
  explicit InfLlmV2Pattern(const InfLlmV2& options) : options_(options) {}

  Selection<Exec> select(const Exec& exec, comm::Communicator& communicator,
                         const PatternInputs<Exec, T>& in) override {
    const Region region("annulus::sparsity::select");
    const TopBlocks of = options_.blocks_of(in.tokens);
    Selection<Exec> made = selection_of_queries<Exec, T>(exec, in, of, in.k.extent_int(1));
    const auto halves =
        pooled_keys<Exec, T>(exec, communicator, in.k, in.positions, in.tokens, options_.stride, in.spans());
    const std::int64_t heads = std::int64_t{made.batch} * made.heads,
                       part = options_.rows_at_once(heads, in.tokens, in.positions.count);
    for (std::int64_t first = 0; first < in.positions.count; first += part) {
      const std::int64_t rows = std::min(part, in.positions.count - first);
      const std::int64_t halves_of_row = options_.units(in.tokens);
      const auto products =
          RowTiles<Exec>::memory(exec, "annulus::sparsity::compressed_products", heads, rows, halves_of_row);
      const auto sums = Owned<Array2<double, Exec>>::uninitialized(
          exec, MemoryCategory::workspace, "annulus::sparsity::compressed_sums", heads, part);
      const auto memory = RowTiles<Exec>::memory(exec, "annulus::sparsity::block_scores", made.all_lists(),
                                                 rows, of.blocks());
      const ScoredRows<Exec> scored{{*products, heads, rows, halves_of_row},
                                    *sums,
                                    in.positions.slice({first, first + rows}),
                                    options_.stride,
                                    made.heads,
                                    in.spans()};
      const RowTiles<Exec> scores{*memory, made.all_lists(), rows, of.blocks()};
      pooled_products<Exec, T>(exec, in.q, in.positions, *halves, options_.stride, first, scored.values);
      raise<Exec>(exec, scored, in.scale);
      score_blocks<Exec>(exec, scored, of, scores);
      choose_blocks<Exec>(exec, scores, in.positions, of, first, *made.blocks, made.lists, in.spans());
    }
    share_bits(exec, communicator, made);
    return made;
  }

 private:
  InfLlmV2 options_;
};

}  // namespace infllm_v2_detail

template <class Exec, class T>
std::unique_ptr<Pattern<Exec, T>> InfLlmV2::make() const {
  return std::make_unique<infllm_v2_detail::InfLlmV2Pattern<Exec, T>>(*this);
}

#define ANNULUS_INSTANTIATE(EXEC, T) \
  template std::unique_ptr<Pattern<EXEC, T>> InfLlmV2::make<EXEC, T>() const;
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
