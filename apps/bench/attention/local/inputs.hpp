#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/kernels/runs_on.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/range.hpp"
#include "bench/attention/local/values.hpp"

namespace annulus::bench {

/// Values of tensors for the rows of one rank.
struct InputSource {
  std::uint64_t seed = 0;
  PositionMap positions;  ///< of the rows
  /// (batch, rows): q, k and v are embeddings of them; empty: values by position, as those of d_o.
  std::vector<std::vector<std::int32_t>> tokens = {};
  std::uint64_t embedding_seed = 0;  ///< in the place of `seed`, of embeddings
  bool vertical_slash = false;       ///< q and k: VerticalSlashValues; without tokens
};

/// The token ids of `source`, (batch, rows), in the memory of `exec`; without any where it has none.
template <class Exec>
Array2<std::int32_t, Exec> tokens_on(const Exec& exec, const InputSource& source) {
  if (source.tokens.empty()) return {};
  const Array2<std::int32_t, Exec> tokens(
      Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, "annulus::bench::tokens"), source.tokens.size(),
      static_cast<std::size_t>(source.positions.count));
  const auto host = Kokkos::create_mirror_view(tokens);
  for (std::size_t b = 0; b < host.extent(0); ++b)
    for (std::size_t row = 0; row < host.extent(1); ++row) host(b, row) = source.tokens[b][row];
  Kokkos::deep_copy(exec, tokens, host);
  exec.fence("annulus::bench::tokens_on: the host copy goes away");
  return tokens;
}

/// One of q, k, v, d_o: (batch, heads, rows, its columns), rounded to T. Made where `exec` computes.
template <class Exec, class T>
Owned<Array4<T, Exec>> make_input(const Exec& exec, const plan::Problem& problem, plan::Tensor tensor,
                                  const InputSource& source) {
  const int heads = plan::is_query_side(tensor) ? problem.heads : problem.kv_heads;
  const std::string label = "annulus::bench::" + std::string(plan::name_of(tensor));
  auto input = Owned<Array4<T, Exec>>::uninitialized(exec, MemoryCategory::activations, label, problem.batch,
                                                     heads, source.positions.count, problem.columns(tensor));
  const Array4<T, Exec> values = input.view();
  Array2<std::int32_t, Exec> tokens;
  if (tensor != plan::Tensor::d_o) tokens = tokens_on(exec, source);
  const attention::RunsOn<Exec> runs(exec, {problem.layout});
  const PositionMap positions = runs(source.positions);
  const std::uint64_t seed = tokens.data() != nullptr ? source.embedding_seed : source.seed;
  const std::int64_t rows = positions.count;
  const int columns = problem.columns(tensor);
  const bool has_lines = source.vertical_slash && (tensor == plan::Tensor::q || tensor == plan::Tensor::k);
  const VerticalSlashValues with_lines(seed, problem.mask.tokens(), columns);
  Kokkos::parallel_for(
      "annulus::bench::make_input", ElementRange<Exec>(exec, 0, std::int64_t{problem.batch} * heads * rows),
      KOKKOS_LAMBDA(const std::int64_t n) {
        const std::int64_t row = n % rows, h = n / rows % heads, b = n / rows / heads;
        const bool embedded = tokens.data() != nullptr;
        const std::int64_t place = embedded ? tokens(b, row) : positions(row);
        // One token has one embedding, in whatever sequence of the batch it stands.
        for (int i = 0; i < columns; ++i) {
          values(b, h, row, i) = T(has_lines ? with_lines(tensor, b, h, place, i)
                                             : seeded_value(seed, tensor, embedded ? 0 : b, h, place, i));
        }
      });
  exec.fence("annulus::bench::make_input: the tokens go away");
  return input;
}

/// A sink for each head, rounded to T: as large as scores are.
template <class Exec, class T>
Owned<Array1<T, Exec>> make_sinks(const Exec& exec, const plan::Problem& problem, std::uint64_t seed) {
  auto sinks = Owned<Array1<T, Exec>>::uninitialized(exec, MemoryCategory::activations,
                                                     "annulus::bench::sinks", problem.heads);
  const Array1<T, Exec> values = sinks.view();
  Kokkos::parallel_for(
      "annulus::bench::make_sinks", ElementRange<Exec>(exec, 0, problem.heads),
      KOKKOS_LAMBDA(const std::int64_t h) {
        values(h) = T(2.0f * seeded_value(seed, plan::Tensor::lse, 0, h, 0, 0));
      });
  return sinks;
}

}  // namespace annulus::bench
