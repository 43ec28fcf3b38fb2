#include <type_traits>

#include <annulus/base/error.hpp>

#include "attention/kernels/check.hpp"
#include "attention/kernels/mma/mma.hpp"
#include "attention/kernels/portable/scores.hpp"
#include "attention/kernels/scores.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::attention {

template <class Exec, class T>
void causal_scores(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& scores,
                   const Array1<float, Exec>& maxima) {
  const Region region("annulus::attention::causal_scores");
  require(in.k.extent(1) > 0 && in.q.extent(1) % in.k.extent(1) == 0 && in.q.extent(0) == in.k.extent(0) &&
              in.q.extent(3) == in.k.extent(3),
          "Attention scores: q {} and k {} do not fit: batch and head_dim must be equal, and the kv heads "
          "must divide the heads",
          shape_of(in.q), shape_of(in.k));
  require(scores.extent(0) == in.q.extent(0) * in.q.extent(1) && scores.extent(1) == in.k.extent(2) &&
              static_cast<std::int64_t>(scores.extent(2)) == in.queries_of_group() &&
              in.k_positions.count == static_cast<std::int64_t>(in.k.extent(2)),
          "Attention scores: {} scores of q {} in {} groups and k {} at {} positions: they must be (batch · "
          "heads, keys, queries of a group)",
          shape_of(scores), shape_of(in.q), in.groups, shape_of(in.k), in.k_positions.count);
  require(maxima.extent(0) == scores.extent(0) * in.q.extent(2),
          "Attention scores: {} maxima for {} heads (of all sequences) with {} queries: one for each query",
          maxima.extent(0), scores.extent(0), in.q.extent(2));
  if (scores.size() == 0) return;
#ifdef ANNULUS_ATTENTION_MMA
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda> && !std::is_same_v<T, float>) {
    if (mma::scores_apply(in.q, in.k)) return mma::causal_scores(exec, in, scores, maxima);
  }
#endif
  portable::causal_scores(exec, in, scores, maxima);
}

ANNULUS_FOR_ATTENTION(ANNULUS_COMPILE_TYPED_FUNCTION, causal_scores)

}  // namespace annulus::attention
