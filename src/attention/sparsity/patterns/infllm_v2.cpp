#include "attention/sparsity/patterns/infllm_v2.hpp"

#include <algorithm>

#include "attention/sparsity/patterns/compressed_scores.hpp"
#include "attention/sparsity/query_blocks/of_queries.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace {

template <class Exec, class T>
class InfLlmV2Pattern final : public Pattern<Exec, T> {
 public:
  explicit InfLlmV2Pattern(const InfLlmV2& options) : options_(options) {}

  Selection<Exec> select(const Exec& exec, comm::Communicator& communicator,
                         const PatternInputs<Exec, T>& in) override {
    const Region region("annulus::sparsity::select");
    const TopBlocks of = options_.blocks_of(in.tokens);
    Selection<Exec> made = selection_of_queries<Exec, T>(exec, in, of, in.k.extent_int(1));
    const auto keys = compressed_keys<Exec, T>(exec, communicator, in, options_);
    const std::int64_t choosing = options_.rows_that_choose(made.all_lists(), in.tokens, in.positions.count),
                       part =
                           options_.rows_at_once(std::int64_t{made.batch} * made.heads, in.tokens, choosing);
    for (std::int64_t first = 0; first < in.positions.count; first += choosing) {
      const std::int64_t rows = std::min(choosing, in.positions.count - first);
      const auto scores = Owned<Array3<float, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                                    "annulus::sparsity::block_scores",
                                                                    made.all_lists(), of.blocks(), rows);
      compressed_scores<Exec, T>(exec, in, options_, *keys, first, part, *scores);
      choose_blocks<Exec>(exec, *scores, in.positions, of, first, *made.blocks, made.lists, in.spans());
    }
    share_bits(exec, communicator, made);
    return made;
  }

 private:
  InfLlmV2 options_;
};

}  // namespace

template <class Exec, class T>
std::unique_ptr<Pattern<Exec, T>> InfLlmV2::make() const {
  return std::make_unique<InfLlmV2Pattern<Exec, T>>(*this);
}

#define ANNULUS_INSTANTIATE(EXEC, T) \
  template std::unique_ptr<Pattern<EXEC, T>> InfLlmV2::make<EXEC, T>() const;
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
