#pragma once

#include "attention/kernels/mma/gathered.hpp"
#include "attention/kernels/mma/launch.hpp"

/// Starts the kernels that gather queries, where gathers() says so.
namespace annulus::attention::mma {

/// How many queries a block of threads gathers from: fewer where the GPU would have too few blocks. Does not
/// change results.
template <class T>
int queries_of_block(const Input<T>& in) {
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  int queries = most_gathered_from;
  while (queries > 512 && std::int64_t{tiles(in.q_positions.count, queries)} * in.heads * in.batch <
                              4 * std::int64_t{processors})
    queries /= 2;
  return queries;
}

template <int head_dim, class T>
cudaError_t launch_gathered_of(const ForwardProblem<T>& problem, cudaStream_t stream) {
  const Input<T>& in = problem.in;
  const int queries = queries_of_block(in);
  return launch(gathered_forward_kernel<T, head_dim>,
                dim3(tiles(in.q_positions.count, queries), in.heads, in.batch), ForwardShape::threads,
                ForwardTiles<head_dim>::bytes, stream, problem, queries);
}

template <int head_dim, class T>
cudaError_t launch_gathered_of(const BackwardProblem<T>& problem, cudaStream_t stream) {
  const Input<T>& in = problem.in;
  using Shape = BackwardShape;
  constexpr int bytes = BackwardTiles<head_dim>::bytes;
  const cudaError_t error = launch(gathered_key_gradient_kernel<T, head_dim>,
                                   dim3(tiles(in.kv_positions.count, Shape::own_rows), in.kv_heads, in.batch),
                                   Shape::threads, bytes, stream, problem);
  if (error != cudaSuccess) return error;
  const int queries = queries_of_block(in);
  return launch(gathered_query_gradient_kernel<T, head_dim>,
                dim3(tiles(in.q_positions.count, queries), in.heads, in.batch), Shape::threads, bytes, stream,
                problem, queries);
}

template <class Problem>
cudaError_t launch_gathered(const Problem& problem, cudaStream_t stream) {
  return problem.in.head_dim == 64 ? launch_gathered_of<64>(problem, stream)
                                   : launch_gathered_of<128>(problem, stream);
}

}  // namespace annulus::attention::mma

/// Compiles both passes for an element type.
#define ANNULUS_ATTENTION_MMA_GATHERED_FOR(T)                           \
  template cudaError_t annulus::attention::mma::launch_gathered(        \
      const annulus::attention::gpu::ForwardProblem<T>&, cudaStream_t); \
  template cudaError_t annulus::attention::mma::launch_gathered(        \
      const annulus::attention::gpu::BackwardProblem<T>&, cudaStream_t);
