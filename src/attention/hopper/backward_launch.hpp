#pragma once

#include <cmath>

#include "attention/hopper/backward.hpp"
#include "attention/hopper/launch_detail.hpp"

namespace annulus::attention::hopper {

template <class Tile>
Workspace backward_tables(void* memory, std::int64_t q_rows, std::int64_t kv_rows, int heads,
                          const LaunchOptions& options) {
  return Workspace(memory, kv_rows, q_rows, Tile::kv_rows, Tile::q_rows, options.deterministic ? heads : 0);
}

template <int head_dim>
std::size_t backward_workspace(std::int64_t q_rows, std::int64_t kv_rows, int heads,
                               const LaunchOptions& options) {
  return backward_tables<BackwardTile<head_dim>>(nullptr, q_rows, kv_rows, heads, options).bytes;
}

template <int head_dim, class T>
cudaError_t launch_backward(const gpu::BackwardProblem<T>& problem, const LaunchOptions& options,
                            void* memory, cudaStream_t stream) {
  using Tile = BackwardTile<head_dim>;
  const gpu::Input<T>& in = problem.in;
  const std::int64_t q_rows = in.q_positions.count, kv_rows = in.kv_positions.count;
  const Workspace workspace = backward_tables<Tile>(memory, q_rows, kv_rows, in.batch * in.heads, options);
  const bool contiguous = problem.dq.row_stride == head_dim;
  const GradientOrder order{!contiguous             ? GradientOrder::rows
                            : options.deterministic ? GradientOrder::lanes_in_turn
                                                    : GradientOrder::lanes,
                            options.fresh_dq};
  ANNULUS_RETURN_ON_ERROR(
      fill_walk_tables(in.mask, {in.kv_positions, in.q_positions, Tile::kv_rows, Tile::q_rows, false}, order,
                       workspace, stream));

  BackwardParameters p;
  ANNULUS_RETURN_ON_ERROR(make_tensor_map(p.q, in.q, in.batch, in.heads, q_rows, head_dim, Tile::q_rows));
  ANNULUS_RETURN_ON_ERROR(
      make_tensor_map(p.d_out, problem.d_out, in.batch, in.heads, q_rows, head_dim, Tile::q_rows));
  ANNULUS_RETURN_ON_ERROR(
      make_tensor_map(p.k, in.k, in.batch, in.kv_heads, kv_rows, head_dim, Tile::kv_rows));
  ANNULUS_RETURN_ON_ERROR(
      make_tensor_map(p.v, in.v, in.batch, in.kv_heads, kv_rows, head_dim, Tile::kv_rows));
  p.lse = problem.lse;
  p.d = problem.d;
  p.dq = problem.dq;
  p.dk = problem.dk;
  p.dv = problem.dv;
  p.walk = {workspace.spans, workspace.runs, workspace.walks, workspace.first_visitors};
  p.order =
      work_order(in.batch * in.kv_heads, ceil_divide(kv_rows, Tile::kv_rows), Tile::heads_in_section, false);
  p.tickets = workspace.tickets;
  p.turns = workspace.turns;
  p.q_tiles = static_cast<int>(ceil_divide(q_rows, Tile::q_rows));
  p.heads = in.heads;
  p.kv_heads = in.kv_heads;
  p.q_rows = static_cast<int>(q_rows);
  p.kv_rows = static_cast<int>(kv_rows);
  p.factor = in.scale * gpu::log2_e;
  constexpr bool scaled = scaled_probabilities<T>;
  p.log2_shift = scaled ? std::log2(in.scale) : 0.0f;
  p.dq_factor = p.dk_factor = scaled ? 1.0f : in.scale;
  p.dv_factor = scaled ? 1.0f / in.scale : 1.0f;
  p.fresh_dkv = options.fresh_dkv;
  const auto prepare = [&](auto kernel) {
    const dim3 blocks(static_cast<unsigned>(p.q_tiles), static_cast<unsigned>(in.batch * in.heads));
    kernel<<<blocks, 2 * warpgroup, 0, stream>>>(p, contiguous);
    return cudaGetLastError();
  };
  const bool free = order.kind == GradientOrder::lanes;
  if (options.fresh_dq) {
    ANNULUS_RETURN_ON_ERROR(free ? prepare(prepare_query_gradient<Tile, Prepare::zero_all>)
                                 : prepare(prepare_query_gradient<Tile, Prepare::zero>));
  } else if (contiguous) {
    ANNULUS_RETURN_ON_ERROR(prepare(prepare_query_gradient<Tile, Prepare::order_of_lanes>));
  }
  ANNULUS_RETURN_ON_ERROR(launch_persistent(backward_kernel<T, Tile>, Tile::threads,
                                            BackwardMemory<Tile>::bytes, p, options, stream));
  return free ? prepare(prepare_query_gradient<Tile, Prepare::order_of_rows>) : cudaSuccess;
}

}  // namespace annulus::attention::hopper

/// Compiles the pass for an element type and a head dimension.
#define ANNULUS_HOPPER_BACKWARD(T, head_dim)                                                                \
  template cudaError_t annulus::attention::hopper::launch_backward<head_dim, T>(                            \
      const annulus::attention::gpu::BackwardProblem<T>&, const annulus::attention::hopper::LaunchOptions&, \
      void*, cudaStream_t);
