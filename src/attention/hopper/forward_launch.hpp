#pragma once

#include "attention/hopper/forward.hpp"
#include "attention/hopper/launch_detail.hpp"

namespace annulus::attention::hopper {

template <class Tile>
Workspace forward_tables(void* memory, std::int64_t q_rows, std::int64_t kv_rows) {
  return Workspace(memory, q_rows, kv_rows, Tile::q_rows, Tile::kv_rows, 0);
}

template <int head_dim>
std::size_t forward_workspace(std::int64_t q_rows, std::int64_t kv_rows) {
  return forward_tables<ForwardTile<head_dim>>(nullptr, q_rows, kv_rows).bytes;
}

template <int head_dim, class T>
cudaError_t launch_forward(const gpu::ForwardProblem<T>& problem, const LaunchOptions& options, void* memory,
                           cudaStream_t stream) {
  using Tile = ForwardTile<head_dim>;
  const gpu::Input<T>& in = problem.in;
  const std::int64_t q_rows = in.q_positions.count, kv_rows = in.kv_positions.count;
  const Workspace workspace = forward_tables<Tile>(memory, q_rows, kv_rows);
  ANNULUS_RETURN_ON_ERROR(
      fill_walk_tables(in.mask, {in.q_positions, in.kv_positions, Tile::q_rows, Tile::kv_rows, true},
                       GradientOrder{}, workspace, stream));

  ForwardParameters p;
  ANNULUS_RETURN_ON_ERROR(make_tensor_map(p.q, in.q, in.batch, in.heads, q_rows, head_dim, 64));
  ANNULUS_RETURN_ON_ERROR(
      make_tensor_map(p.k, in.k, in.batch, in.kv_heads, kv_rows, head_dim, Tile::kv_rows));
  ANNULUS_RETURN_ON_ERROR(
      make_tensor_map(p.v, in.v, in.batch, in.kv_heads, kv_rows, head_dim, Tile::kv_rows));
  p.out = problem.out;
  p.lse = problem.lse;
  p.walk = {workspace.spans, workspace.runs, workspace.walks, nullptr};
  // K and V of a kv head serve all heads of its group.
  const std::int64_t bytes_of_head = ceil_divide(2 * kv_rows * head_dim * 2 * in.kv_heads, in.heads);
  p.order =
      work_order(in.batch * in.heads, ceil_divide(q_rows, Tile::q_rows), section_bytes / bytes_of_head, true);
  p.tickets = workspace.tickets;
  p.fresh = options.fresh_out;
  p.heads = in.heads;
  p.kv_heads = in.kv_heads;
  p.q_rows = static_cast<int>(q_rows);
  p.scale = in.scale;
  p.inverse_scale = 1.0f / in.scale;
  return launch_persistent(forward_kernel<T, Tile>, Tile::threads, ForwardMemory<Tile>::bytes, p, options,
                           stream);
}

}  // namespace annulus::attention::hopper

/// Compiles the pass for an element type and a head dimension.
#define ANNULUS_HOPPER_FORWARD(T, head_dim)                                                                \
  template cudaError_t annulus::attention::hopper::launch_forward<head_dim, T>(                            \
      const annulus::attention::gpu::ForwardProblem<T>&, const annulus::attention::hopper::LaunchOptions&, \
      void*, cudaStream_t);
