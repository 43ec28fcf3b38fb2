#pragma once

#include <annulus/base/division.hpp>

#include "attention/kernels/mma/backward.hpp"
#include "attention/kernels/mma/forward.hpp"
#include "attention/kernels/mma/scores.hpp"

/// Starts the kernels on a stream. Each returns what CUDA says to it. `head_dim`: columns of the tiles; rows
/// have fewer only where `clipped`; scores have a soft cap where `capped`; heads have block lists or listed
/// keys of their own where `of_heads`.
namespace annulus::attention::mma {

template <class Kernel, class... Arguments>
cudaError_t launch(Kernel kernel, dim3 grid, int threads, int bytes, cudaStream_t stream,
                   const Arguments&... arguments) {
  // More than 48 KiB of shared memory has to be asked for, once for each device.
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<grid, threads, bytes, stream>>>(arguments...);
  return cudaGetLastError();
}

inline unsigned tiles(std::int64_t rows, int tile) {
  return static_cast<unsigned>(ceil_divide(rows, tile));
}

template <int head_dim, bool clipped, bool capped, bool of_heads, class T>
cudaError_t launch_forward(const ForwardProblem<T>& problem, cudaStream_t stream) {
  const Input<T>& in = problem.in;
  const dim3 grid(tiles(in.q_positions.count, ForwardShape::own_rows), in.heads, in.batch);
  return launch(forward_kernel<T, head_dim, clipped, capped, of_heads>, grid, ForwardShape::threads,
                ForwardTiles<head_dim>::bytes, stream, problem);
}

template <int head_dim, bool clipped, bool capped, bool of_heads, class T>
cudaError_t launch_backward(const BackwardProblem<T>& problem, cudaStream_t stream) {
  const Input<T>& in = problem.in;
  using Shape = BackwardShape;
  constexpr int bytes = BackwardTiles<head_dim>::bytes;
  const dim3 keys(tiles(in.kv_positions.count, Shape::own_rows), in.kv_heads, in.batch);
  const cudaError_t error = launch(key_gradient_kernel<T, head_dim, clipped, capped, of_heads>, keys,
                                   Shape::threads, bytes, stream, problem);
  if (error != cudaSuccess) return error;
  const dim3 queries(tiles(in.q_positions.count, Shape::own_rows), in.heads, in.batch);
  return launch(query_gradient_kernel<T, head_dim, clipped, capped, of_heads>, queries, Shape::threads, bytes,
                stream, problem);
}

/// ForwardProblem or BackwardProblem, where gathers().
template <class Problem>
cudaError_t launch_gathered(const Problem& problem, cudaStream_t stream);

template <int head_dim, bool clipped, class T>
cudaError_t launch_scores(const ScoreProblem<T>& problem, cudaStream_t stream) {
  const dim3 grid(
      static_cast<unsigned>(problem.tiles.count) * tiles(problem.queries, ScoreShape::most_queries),
      problem.kv_heads, problem.batch);
  return launch(score_kernel<T, head_dim, clipped>, grid, ScoreShape::threads, ScoreTiles<head_dim>::bytes,
                stream, problem);
}

template <class T>
cudaError_t launch_deep_scores(const ScoreProblem<T>& problem, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(problem.tiles.count), problem.batch * problem.heads,
                  tiles(problem.queries, ScoreShape::inner_rows));
  return launch(deep_score_kernel<T>, grid, ScoreShape::threads, DeepScoreTiles::bytes, stream, problem);
}

}  // namespace annulus::attention::mma
