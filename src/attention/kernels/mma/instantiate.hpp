#pragma once

#include <annulus/base/error.hpp>
#include <type_traits>

#include "attention/kernels/gpu/views.hpp"
#include "attention/kernels/mma/launch.hpp"
#include "attention/kernels/mma/mma.hpp"
#include "base/kokkos/execution/region.hpp"

/// Turns Views into the plain pointers of the kernels.
namespace annulus::attention::mma {

using gpu::input_of;
using gpu::rows_of;

inline void check(cudaError_t error, const char* pass) {
  require(error == cudaSuccess, "Attention: CUDA does not start the {} of the kernel mma: {}", pass,
          cudaGetErrorString(error));
}

/// Calls launch(columns of the tiles, whether rows may have fewer). One kernel takes all rows of 72 to 96
/// columns, which keeps compilation short.
template <class Launch>
cudaError_t with_tiles(int head_dim, const Launch& launch) {
  return gpu::with_tile_columns(head_dim, [&](auto columns, auto clipped) {
    return launch(columns, std::bool_constant < clipped || columns == 96 > {});
  });
}

/// Calls launch(columns of the tiles, whether rows may have fewer, whether scores have a soft cap, whether
/// heads have block lists or listed keys of their own; never both of the last). One kernel takes all such
/// rows of more than 64 columns, for the same reason.
template <class T, class Launch>
cudaError_t with_tiles(const Input<T>& in, const Launch& launch) {
  constexpr std::true_type yes;
  constexpr std::false_type no;
  const auto with = [&](auto capped, auto of_heads) {
    if (in.head_dim == 64) return launch(std::integral_constant<int, 64>{}, no, capped, of_heads);
    return launch(std::integral_constant<int, 128>{}, yes, capped, of_heads);
  };
  if (in.soft_cap > 0.0f) return with(yes, no);
  if (in.mask.lists_of_heads() || in.kv_listed != nullptr) return with(no, yes);
  return with_tiles(in.head_dim,
                    [&](auto columns, auto clipped) { return launch(columns, clipped, no, no); });
}

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
             const Strided3<float, Exec>& lse) {
  const Region region("annulus::attention::mma::forward");
  const ForwardProblem<T> problem{input_of(in), rows_of(out), rows_of(lse)};
  if (gathers(in)) return check(launch_gathered(problem, exec.cuda_stream()), "forward pass");
  check(with_tiles(problem.in,
                   [&](auto columns, auto clipped, auto capped, auto of_heads) {
                     return launch_forward<columns, clipped, capped, of_heads>(problem, exec.cuda_stream());
                   }),
        "forward pass");
}

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays) {
  const Region region("annulus::attention::mma::backward");
  const BackwardProblem<T> problem{input_of(in),      rows_of(arrays.d_out), rows_of(arrays.lse),
                                   rows_of(arrays.d), rows_of(arrays.dq),    rows_of(arrays.dk),
                                   rows_of(arrays.dv)};
  if (gathers(in)) return check(launch_gathered(problem, exec.cuda_stream()), "backward pass");
  check(with_tiles(problem.in,
                   [&](auto columns, auto clipped, auto capped, auto of_heads) {
                     return launch_backward<columns, clipped, capped, of_heads>(problem, exec.cuda_stream());
                   }),
        "backward pass");
}

template <class Exec, class T>
void causal_scores(const Exec& exec, const ScoreOperands<T, Exec>& in, const Array3<float, Exec>& scores,
                   const Array1<float, Exec>& maxima) {
  const Region region("annulus::attention::mma::causal_scores");
  const ScoreProblem<T> problem{.q = rows_of(in.q),
                                .k = rows_of(in.k),
                                .k_positions = in.k_positions,
                                .first_query = in.first_query,
                                .scale = in.scale,
                                .batch = in.q.extent_int(0),
                                .heads = in.q.extent_int(1),
                                .kv_heads = in.k.extent_int(1),
                                .queries = static_cast<int>(in.queries_of_group()),
                                .groups = static_cast<int>(in.groups),
                                .scores = scores.data(),
                                .maxima = maxima.data(),
                                .head_dim = in.q.extent_int(3),
                                .q_listed = in.q_listed,
                                .q_first = in.q_first,
                                .tiles = in.all_tiles()};
  if (!shapes_apply(in.q, in.k)) return check(launch_deep_scores(problem, exec.cuda_stream()), "scores");
  check(with_tiles(problem.head_dim,
                   [&](auto columns, auto clipped) {
                     return launch_scores<columns, clipped>(problem, exec.cuda_stream());
                   }),
        "scores");
}

}  // namespace annulus::attention::mma

/// Compile the forward pass and the scores, or the backward pass, for an element type: two sources, which
/// are compiled at the same time.
#define ANNULUS_ATTENTION_MMA_FORWARD_FOR(Exec, T)                                                        \
  template void annulus::attention::mma::forward<Exec, T>(                                                \
      const Exec&, const Operands<T, Exec>&, const Strided4<float, Exec>&, const Strided3<float, Exec>&); \
  template void annulus::attention::mma::causal_scores<Exec, T>(                                          \
      const Exec&, const ScoreOperands<T, Exec>&, const Array3<float, Exec>&, const Array1<float, Exec>&);
#define ANNULUS_ATTENTION_MMA_BACKWARD_FOR(Exec, T)                                               \
  template void annulus::attention::mma::backward<Exec, T>(const Exec&, const Operands<T, Exec>&, \
                                                           const BackwardArrays<T, Exec>&);
