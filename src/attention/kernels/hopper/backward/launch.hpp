#pragma once

#include <cmath>

#include "attention/kernels/hopper/backward/kernel.hpp"
#include "attention/kernels/hopper/backward/key_gradients.hpp"
#include "attention/kernels/hopper/backward/prepare.hpp"
#include "attention/kernels/hopper/backward/query_gradients.hpp"
#include "attention/kernels/hopper/forward/launch.hpp"

namespace annulus::attention::hopper {

/// Whether about as many queries see one key as another: masks with both ends or none, and blocks that a mask
/// leaves whole. Documents and block lists are taken for uneven.
template <class T>
bool loops_are_even(const gpu::Input<T>& in) {
  const MaskRule& mask = in.mask;
  if (mask.documents > 0 || mask.has_blocks()) return false;
  const bool has_end = mask.left != MaskRule::unbounded, has_begin = mask.right != MaskRule::unbounded;
  return has_end == has_begin || mask.classify(in.q_positions, in.kv_positions) == Coverage::full;
}

/// How many kv heads take turns where there are block lists. In a fixed order a key tile waits for tiles of
/// its head that list more, and where several heads take turns, few tiles of one head run at a time. But Q,
/// dO and dQ of these heads should stay in the L2 cache. TFLOP/s on an H200 with 1, 2, 4 and 8 kv heads,
/// fixed order: 32768 rows, 16 / 4 heads, blocks of 1024 keys of each query 418, 499, 535; 16384 rows, 32
/// heads, one list 345, 394, 407, 372. In any order the last row has 566, 541, 438, 360.
template <class T>
std::int64_t kv_heads_in_section_of_lists(const gpu::Input<T>& in, bool deterministic) {
  if (!deterministic) return 1;
  // Neighbouring queries with blocks of their own mostly have the same ones.
  const std::int64_t cached = std::int64_t{in.mask.query_blocks != nullptr ? 128 : 64} << 20;
  const std::int64_t bytes_of_row = in.head_dim * (2 + 2 + 4);
  return std::max<std::int64_t>(cached / (std::max<std::int64_t>(in.q_positions.count, 1) * bytes_of_row), 1);
}

/// In how many parts the loops of key tiles are computed. Listed keys are few: 16 heads of 1000 keys have 128
/// tiles, and a GPU would wait for the first one of each head, which most queries see, twice the mean. Two
/// parts add to zeros, which gives the same bits in either order; more would not.
inline int parts_of_loops(const TileTablesSize& size, std::int64_t heads, int group, bool fresh) {
  constexpr std::int64_t few = 192;  // tiles, whatever the GPU, so that it does not change bits
  return size.listed_keys && group == 1 && fresh && heads * size.own_tiles <= few ? 2 : 1;
}

/// What probabilities and gradients are multiplied by.
template <class Tile, class T, class Parameters>
void set_factors(Parameters& p, const gpu::Input<T>& in) {
  const float scale = in.scale;
  p.factor = (Tile::capped ? in.soft_cap : scale) * gpu::log2_e;
  p.tangent_factor = Tile::capped ? scale / in.soft_cap : 0.0f;
  p.log2_shift = scaled_probabilities<T> ? std::log2(scale) : 0.0f;
  p.dq_factor = scaled_probabilities<T> ? 1.0f : scale;
}

/// dK and dV, and dQ where it is computed with them.
template <class Tile, class T>
cudaError_t launch_keys(const gpu::BackwardProblem<T>& problem, const DilationClasses& classes,
                        const LaunchOptions& options, void* memory, cudaStream_t stream) {
  const gpu::Input<T>& in = problem.in;
  const std::int64_t q_rows = in.q_positions.count, kv_rows = in.kv_positions.count;
  const bool deterministic = Tile::has_dq && options.deterministic;
  const TileSides sides = backward_sides<Tile>(in, classes);
  const TileTablesSize size = sides.size(in.mask, Tile::has_dq, deterministic ? in.batch * in.heads : 0);
  const TableMemory workspace(memory, size);
  const GradientSums sums = !Tile::has_dq                       ? GradientSums::none
                            : deterministic && options.fresh_dq ? GradientSums::first_sets
                                                                : GradientSums::any;
  ANNULUS_RETURN_ON_ERROR(fill_tile_tables(in.mask, sides, sums, size, workspace, stream));

  BackwardParameters p;
  const auto maps = [&](RowMaps& to, const auto& rows, std::int64_t count, int heads, int columns, int box) {
    return make_row_maps(to, rows, classes.count, count, in.batch, heads, columns, box);
  };
  ANNULUS_RETURN_ON_ERROR(maps(p.q, in.q, q_rows, in.heads, in.head_dim, Tile::q_rows));
  ANNULUS_RETURN_ON_ERROR(maps(p.d_out, problem.d_out, q_rows, in.heads, in.v_head_dim, Tile::q_rows));
  ANNULUS_RETURN_ON_ERROR(maps(p.k, in.k, kv_rows, in.kv_heads, in.head_dim, Tile::kv_rows));
  ANNULUS_RETURN_ON_ERROR(maps(p.v, in.v, kv_rows, in.kv_heads, in.v_head_dim, Tile::kv_rows));
  ANNULUS_RETURN_ON_ERROR(maps(p.dq_maps, problem.dq, q_rows, in.heads, in.head_dim, Tile::q_rows));
  p.lse = problem.lse;
  p.d = problem.d;
  p.dq = problem.dq;
  p.dk = problem.dk;
  p.dv = problem.dv;
  p.tile_tables = workspace.tables(size);
  p.statistics = reinterpret_cast<float*>(static_cast<std::byte*>(memory) + workspace.bytes);
  p.classes = classes;
  const int group = in.heads / in.kv_heads, heads_and_classes = in.batch * in.kv_heads * classes.count;
  const bool even = loops_are_even(in);
  // Listed keys are few: the tiles of all heads fill the GPU twice or so, and the longest ones come first.
  const std::int64_t heads_in_section =
      size.listed_keys ? heads_and_classes
      : size.lists()
          ? kv_heads_in_section_of_lists(in, deterministic)
          : Tile::kv_heads_in_section(classes.most_rows(q_rows), in.head_dim, deterministic && !even, group);
  p.order = tile_order(heads_and_classes, size.own_tiles, heads_in_section, false);
  p.tile_counter = workspace.tile_counter;
  p.dq_semaphores = workspace.dq_semaphores;
  p.q_tiles = static_cast<int>(size.other_tiles);
  p.lists_of_heads = size.heads_of_list > 0;
  p.head_by_head = !deterministic || even;
  p.heads = in.heads;
  p.group = group;
  p.kv_heads = in.kv_heads;
  p.q_rows = static_cast<int>(q_rows);
  p.kv_rows = static_cast<int>(kv_rows);
  p.columns = in.head_dim;
  set_factors<Tile>(p, in);
  p.dk_factor = p.dq_factor;
  p.dv_factor = scaled_probabilities<T> ? 1.0f / in.scale : 1.0f;
  p.fresh_dkv = options.fresh_dkv;
  if constexpr (Tile::has_dq) {
    p.order.parts = parts_of_loops(size, heads_and_classes, group, options.fresh_dkv);
    if (p.order.parts > 1) {
      p.fresh_dkv = false;
      clear_key_tiles<Tile><<<static_cast<unsigned>(heads_and_classes * size.own_tiles), 128, 0, stream>>>(p);
      ANNULUS_RETURN_ON_ERROR(cudaGetLastError());
    }
  }
  const auto launch = [&](auto with_lists, auto without) {
    return launch_persistent<Tile>(size.lists() ? with_lists : without, BackwardSharedMemory<Tile>::bytes, p,
                                   options, stream);
  };
  const ClearedRows cleared = !Tile::has_dq || !options.fresh_dq ? ClearedRows::none
                              : sums == GradientSums::first_sets ? ClearedRows::not_written
                                                                 : ClearedRows::all;
  const auto query_tiles = static_cast<unsigned>(size.other_tiles * in.batch * in.heads * classes.count);
  prepare_query_tiles<Tile><<<query_tiles, 128, 0, stream>>>(p, cleared);
  ANNULUS_RETURN_ON_ERROR(cudaGetLastError());
  // Tiles that never have block lists.
  if constexpr (Tile::has_dq && (Tile::capped || (Tile::head_dim <= 64 && Tile::consumers == 3))) {
    return launch(backward_kernel<T, Tile, false>, backward_kernel<T, Tile, false>);
  } else if constexpr (Tile::has_dq && Tile::head_dim <= 64) {  // of block lists alone
    return launch(backward_kernel<T, Tile, true>, backward_kernel<T, Tile, true>);
  } else if constexpr (Tile::has_dq) {
    return launch(backward_kernel<T, Tile, true>, backward_kernel<T, Tile, false>);
  } else if constexpr (Tile::capped || !takes_block_lists(Tile::head_dim)) {
    return launch(key_gradient_kernel<T, Tile, false>, key_gradient_kernel<T, Tile, false>);
  } else if constexpr (Tile::head_dim <= 128) {  // of fine lists
    return launch(key_gradient_kernel<T, Tile, true>, key_gradient_kernel<T, Tile, true>);
  } else {
    return launch(key_gradient_kernel<T, Tile, true>, key_gradient_kernel<T, Tile, false>);
  }
}

/// dQ alone.
template <class Tile, bool lists_of_heads, class T>
cudaError_t launch_queries(const gpu::BackwardProblem<T>& problem, const DilationClasses& classes,
                           const LaunchOptions& options, void* memory, cudaStream_t stream) {
  const gpu::Input<T>& in = problem.in;
  QueryGradientParameters p;
  ANNULUS_RETURN_ON_ERROR((prepare_queries<Tile>(p, in, classes, memory, stream)));
  ANNULUS_RETURN_ON_ERROR(make_row_maps(p.d_out, problem.d_out, classes.count, in.q_positions.count, in.batch,
                                        in.heads, in.v_head_dim, 64));
  p.lse = problem.lse;
  p.d = problem.d;
  p.dq = problem.dq;
  p.fresh = options.fresh_dq;
  set_factors<Tile>(p, in);
  return launch_persistent<Tile>(query_gradient_kernel<T, Tile, lists_of_heads>,
                                 QueryGradientSharedMemory<Tile>::bytes, p, options, stream);
}

template <int head_dim, TileForm form, class T>
cudaError_t launch_backward(const gpu::BackwardProblem<T>& problem, const DilationClasses& classes,
                            const LaunchOptions& options, void* memory, cudaStream_t stream) {
  return with_key_tile<head_dim, form>(problem.in, [&]<class Tile>(Tile) -> cudaError_t {
    ANNULUS_RETURN_ON_ERROR((launch_keys<WithForm<form, Tile>>(problem, classes, options, memory, stream)));
    if constexpr (Tile::has_dq) {
      return cudaSuccess;
    } else {
      return with_query_tile<head_dim, form>(problem.in, [&]<class QueryTile, bool lists_of_heads>(
                                                             QueryTile, std::bool_constant<lists_of_heads>) {
        return launch_queries<WithForm<form, QueryTile>, lists_of_heads>(problem, classes, options, memory,
                                                                         stream);
      });
    }
  });
}

}  // namespace annulus::attention::hopper

/// Compiles the pass for an element type and tiles of `head_dim` columns.
#define ANNULUS_HOPPER_BACKWARD(T, head_dim, form)                                                          \
  template cudaError_t                                                                                      \
  annulus::attention::hopper::launch_backward<head_dim, annulus::attention::hopper::TileForm::form, T>(     \
      const annulus::attention::gpu::BackwardProblem<T>&,                                                   \
      const annulus::attention::hopper::DilationClasses&, const annulus::attention::hopper::LaunchOptions&, \
      void*, cudaStream_t);
