#include "attention/sparsity/patterns/moba.hpp"

#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/query_blocks/of_queries.hpp"
#include "attention/sparsity/query_blocks/query_blocks.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace {

template <class Exec, class T>
class MobaPattern final : public Pattern<Exec, T> {
 public:
  explicit MobaPattern(const Moba& options) : options_(options) {}

  Selection<Exec> select(const Exec& exec, comm::Communicator& communicator,
                         const PatternInputs<Exec, T>& in) override {
    const Region region("annulus::sparsity::select");
    const TopBlocks of = options_.blocks_of(in.tokens);
    Selection<Exec> made = selection_of_queries<Exec, T>(exec, in, of, in.q.extent_int(1));
    const auto pooled =
        pooled_keys<Exec, T>(exec, communicator, in.k, in.positions, in.tokens, of.block, in.spans());
    choose_top_blocks<Exec, T>(exec, in.q, in.positions, *pooled, of, *made.blocks, in.spans());
    share_bits(exec, communicator, made);
    return made;
  }

 private:
  Moba options_;
};

}  // namespace

template <class Exec, class T>
std::unique_ptr<Pattern<Exec, T>> Moba::make() const {
  return std::make_unique<MobaPattern<Exec, T>>(*this);
}

#define ANNULUS_INSTANTIATE(EXEC, T) template std::unique_ptr<Pattern<EXEC, T>> Moba::make<EXEC, T>() const;
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
