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
  /// (heads, rows, halves): products with the halves of compressed keys, then probabilities of these keys.
  Array3<float, Exec> values;
  PositionMap positions;  // of the rows
  std::int64_t stride;    // tokens
  std::int64_t heads;     // of a sequence
  DocumentSpans spans;

  /// Compressed keys first … end − 1, which a row of a head sees whole. The first half of the first one has
  /// of its tokens those of the document alone.
  KOKKOS_FUNCTION TopBlocks::Range keys(std::int64_t head, std::int64_t row) const {
    const std::int64_t position = positions(row), first = spans.of(head / heads, position).begin / stride,
                       end = keys_before(position, stride);
    return {first, end < first ? first : end};
  }
};

/// From products to probabilities, in place: exponentials and probabilities are rounded to fp32, their sum is
/// of fp64, key after key.
template <class Exec>
void normalize(const Exec& exec, const ScoredRows<Exec>& scored, float scale) {
  const auto rows = static_cast<std::int64_t>(scored.values.extent(1));
  Kokkos::parallel_for(
      "annulus::sparsity::compressed_probabilities",
      Kokkos::RangePolicy<Exec>(exec, 0, static_cast<std::int64_t>(scored.values.extent(0)) * rows),
      KOKKOS_LAMBDA(const std::int64_t i) {
        float* const values = &scored.values(i / rows, i % rows, 0);
        const TopBlocks::Range keys = scored.keys(i / rows, i % rows);
        float largest = -Kokkos::Experimental::infinity_v<float>;
        for (std::int64_t key = keys.first; key < keys.end; ++key) {
          values[key] = 0.5f * scale * (values[key] + values[key + 1]);
          largest = Kokkos::fmax(largest, values[key]);
        }
        double sum = 0;
        for (std::int64_t key = keys.first; key < keys.end; ++key) {
          values[key] = Kokkos::exp(values[key] - largest);
          sum += static_cast<double>(values[key]);
        }
        for (std::int64_t key = keys.first; key < keys.end; ++key)
          values[key] = static_cast<float>(static_cast<double>(values[key]) / sum);
      });
}

/// blocks (kv heads, rows, blocks): of the compressed keys that have tokens of the block the largest
/// probability, summed over the query heads of the kv head; −∞ where the query sees none of them.
template <class Exec>
void score_blocks(const Exec& exec, const ScoredRows<Exec>& scored, const TopBlocks& of,
                  const Array3<float, Exec>& blocks) {
  const auto rows = static_cast<std::int64_t>(blocks.extent(1)),
             all = static_cast<std::int64_t>(blocks.extent(2)),
             group = static_cast<std::int64_t>(scored.values.extent(0) / blocks.extent(0));
  const std::int64_t keys_of_block = of.block / scored.stride;
  Kokkos::parallel_for(
      "annulus::sparsity::compressed_scores", Kokkos::RangePolicy<Exec>(exec, 0, blocks.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / all / rows, row = i / all % rows, block = i % all;
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
            sum += scored.values(head, row, key);
          largest = Kokkos::fmax(largest, sum);
        }
        blocks.data()[i] = largest;
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
      const auto some = [&](const char* label, std::int64_t all, std::int64_t width) {
        return Owned<Array3<float, Exec>>::uninitialized(exec, MemoryCategory::workspace, label, all, rows,
                                                         width);
      };
      const auto values = some("annulus::sparsity::compressed_products", heads, options_.units(in.tokens));
      const auto scores = some("annulus::sparsity::block_scores", made.all_lists(), of.blocks());
      const ScoredRows<Exec> scored{*values, in.positions.slice({first, first + rows}), options_.stride,
                                    made.heads, in.spans()};
      pooled_products<Exec, T>(exec, in.q, in.positions, *halves, options_.stride, first, *values);
      normalize<Exec>(exec, scored, in.scale);
      score_blocks<Exec>(exec, scored, of, *scores);
      choose_blocks<Exec>(exec, *scores, in.positions, of, first, *made.blocks, made.lists, in.spans());
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
