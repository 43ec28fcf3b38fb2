#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <vector>

#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/plan/plan.hpp>

namespace annulus::bench {

/// About normally distributed (mean 0, variance 1), a pure function of its arguments: every number of ranks
/// and every layout has the same problem. `place` is a global position, or a token id for embeddings.
float seeded_value(std::uint64_t seed, plan::Tensor tensor, int batch, int head, std::int64_t place, int dim);

/// Values of one tensor for the rows of one rank.
struct InputSource {
  std::uint64_t seed = 0;
  PositionMap positions;  ///< of the rows
  std::vector<std::vector<std::int32_t>>
      tokens;  ///< (batch, rows); empty: values by position instead of embeddings
};

/// One of q, k, v, d_o: (batch, heads, rows, head_dim), rounded to T.
template <class Exec, class T>
Owned<Array4<T, Exec>> make_input(const Exec& exec, const plan::Problem& problem, plan::Tensor tensor,
                                  const InputSource& source) {
  const int heads = plan::is_query_side(tensor) ? problem.heads : problem.kv_heads;
  const std::string label = "annulus::bench::" + std::string(plan::name_of(tensor));
  auto input = Owned<Array4<T, Exec>>::uninitialized(exec, MemoryCategory::activations, label, problem.batch,
                                                     heads, source.positions.count, problem.head_dim);
  const auto host = Kokkos::create_mirror_view(input.view());
  const bool embedded = !source.tokens.empty();
  Kokkos::parallel_for(
      "annulus::bench::make_input",
      Kokkos::MDRangePolicy<HostExec, Kokkos::Rank<3, Kokkos::Iterate::Right, Kokkos::Iterate::Right>,
                            Kokkos::IndexType<std::int64_t>>(HostExec(), {0, 0, 0},
                                                             {problem.batch, heads, source.positions.count}),
      [&](const std::int64_t b, const std::int64_t h, const std::int64_t row) {
        const std::int64_t place =
            embedded ? source.tokens[static_cast<std::size_t>(b)][static_cast<std::size_t>(row)]
                     : source.positions(row);
        for (int i = 0; i < problem.head_dim; ++i) {
          // One token has one embedding, in whatever sequence of the batch it stands.
          host(b, h, row, i) = T(seeded_value(source.seed, tensor, embedded ? 0 : static_cast<int>(b),
                                              static_cast<int>(h), place, i));
        }
      });
  Kokkos::deep_copy(exec, input.view(), host);
  exec.fence("annulus::bench::make_input: the host copy goes away");
  return input;
}

}  // namespace annulus::bench
