#pragma once

#include "attention/kernels/hopper/forward/kernel.hpp"
#include "attention/kernels/hopper/launch/persistent.hpp"
#include "attention/kernels/hopper/launch/workspace.hpp"

namespace annulus::attention::hopper {

/// What kernels that own queries are told: Q, K, V, which keys each tile of queries visits, and in which
/// order blocks take them.
template <class Tile, class T, class Parameters>
cudaError_t prepare_queries(Parameters& p, const gpu::Input<T>& in, const DilationClasses& classes,
                            void* memory, cudaStream_t stream) {
  const std::int64_t q_rows = in.q_positions.count, kv_rows = in.kv_positions.count;
  const TileSides sides = forward_sides<Tile>(in, classes);
  const TileTablesSize size = sides.size(in.mask, false, 0);
  const TableMemory workspace(memory, size);
  ANNULUS_RETURN_ON_ERROR(fill_tile_tables(in.mask, sides, GradientSums::none, size, workspace, stream));
  const auto maps = [&](RowMaps& to, const gpu::Rows<const T>& rows, std::int64_t count, int heads,
                        int columns, int box) {
    return make_row_maps(to, rows, classes.count, count, in.batch, heads, columns, box);
  };
  ANNULUS_RETURN_ON_ERROR(maps(p.q, in.q, q_rows, in.heads, in.head_dim, Tile::packed_rows));
  ANNULUS_RETURN_ON_ERROR(maps(p.k, in.k, kv_rows, in.kv_heads, in.head_dim, Tile::box_rows));
  ANNULUS_RETURN_ON_ERROR(maps(p.v, in.v, kv_rows, in.kv_heads, in.v_head_dim, Tile::box_rows));
  p.tile_tables = workspace.tables(size);
  p.classes = classes;
  // K and V of a kv head serve all heads of its group.
  const std::int64_t bytes_of_head =
      ceil_divide(kv_rows * (in.head_dim + in.v_head_dim) * 2 * in.kv_heads, in.heads);
  p.order = tile_order(in.batch * in.heads / Tile::heads * classes.count, size.own_tiles,
                       section_bytes * classes.count / bytes_of_head / Tile::heads, true);
  p.tile_counter = workspace.tile_counter;
  p.heads = in.heads;
  p.kv_heads = in.kv_heads;
  p.q_rows = static_cast<int>(q_rows);
  p.columns = in.head_dim;
  return cudaSuccess;
}

template <class Tile, bool lists_of_heads, class T>
cudaError_t launch_forward_tile(const gpu::ForwardProblem<T>& problem, const DilationClasses& classes,
                                const LaunchOptions& options, void* memory, cudaStream_t stream) {
  ForwardParameters p;
  ANNULUS_RETURN_ON_ERROR((prepare_queries<Tile>(p, problem.in, classes, memory, stream)));
  p.out = problem.out;
  p.lse = problem.lse;
  p.finished = {reinterpret_cast<std::uint16_t*>(problem.finished.data), problem.finished.batch_stride,
                problem.finished.head_stride, problem.finished.row_stride};
  p.fresh = options.fresh_out;
  p.sinks = problem.sinks;
  const float scale = Tile::capped ? problem.in.soft_cap : problem.in.scale;
  p.scale = scale;
  p.inverse_scale = 1.0f / scale;
  p.factor = scale * gpu::log2_e;
  p.tangent_factor = Tile::capped ? problem.in.scale / problem.in.soft_cap : 0.0f;
  return launch_persistent<Tile>(forward_kernel<T, Tile, lists_of_heads>, ForwardSharedMemory<Tile>::bytes, p,
                                 options, stream);
}

template <int head_dim, TileForm form, class T>
cudaError_t launch_forward(const gpu::ForwardProblem<T>& problem, const DilationClasses& classes,
                           const LaunchOptions& options, void* memory, cudaStream_t stream) {
  return with_forward_tile<head_dim, form>(
      problem.in, [&]<class Tile, bool lists_of_heads>(Tile, std::bool_constant<lists_of_heads>) {
        return launch_forward_tile<WithForm<form, Tile>, lists_of_heads>(problem, classes, options, memory,
                                                                         stream);
      });
}

}  // namespace annulus::attention::hopper

/// Compiles the pass for an element type and tiles of `head_dim` columns.
#define ANNULUS_HOPPER_FORWARD(T, head_dim, form)                                                            \
  template cudaError_t                                                                                       \
  annulus::attention::hopper::launch_forward<head_dim, annulus::attention::hopper::TileForm::form, T>(       \
      const annulus::attention::gpu::ForwardProblem<T>&, const annulus::attention::hopper::DilationClasses&, \
      const annulus::attention::hopper::LaunchOptions&, void*, cudaStream_t);
