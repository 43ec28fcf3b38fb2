#pragma once

#include "attention/kernels/hopper/backward/shared_memory.hpp"

namespace annulus::attention::hopper {

/// Which rows of dQ hold nothing yet and have to be cleared.
enum class ClearedRows { none, not_written, all };

/// What the kernel of dK and dV needs of its queries beforehand: LSE and D as TMA takes them, and rows of dQ
/// cleared. A block has a tile of queries of a head and class.
template <class Tile>
__global__ void prepare_query_tiles(const __grid_constant__ BackwardParameters p, ClearedRows cleared) {
  const int head_and_class = static_cast<int>(blockIdx.x) / p.q_tiles;
  const auto [batch, head, dilation_class] = HeadAndClass::of(head_and_class, p.heads, p.classes.count);
  const int tile = static_cast<int>(blockIdx.x) % p.q_tiles, thread = static_cast<int>(threadIdx.x);
  const std::int64_t first = std::int64_t{tile} * Tile::q_rows;
  if (thread < Tile::q_rows) {
    const auto row = RowStatistics::of(p, batch, head, dilation_class, static_cast<int>(first) + thread);
    float* const to = p.statistics + std::int64_t{blockIdx.x} * 2 * Tile::q_rows;
    to[thread] = row.lse2(p);
    to[Tile::q_rows + thread] = row.d_or_zero();
  }
  const auto visited = [&] {
    return p.tile_tables.first_writers[p.tile_tables.table_of(head_and_class) * p.q_tiles + tile] >= 0;
  };
  if (cleared == ClearedRows::none || (cleared == ClearedRows::not_written && visited())) return;
  const std::int64_t rows =
      min(static_cast<std::int64_t>(Tile::q_rows), p.classes.rows(p.q_rows, dilation_class) - first);
  const int quads = (Tile::clipped ? p.columns : Tile::head_dim) / 4;
  for (int i = thread; i < rows * quads; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = p.classes.row(first + i / quads, dilation_class);
    *reinterpret_cast<float4*>(p.dq.at(batch, head, row) + i % quads * 4) = make_float4(0, 0, 0, 0);
  }
}

/// Clears dK and dV of a tile of keys of a head: two works add to them.
template <class Tile>
__global__ void clear_key_tiles(const __grid_constant__ BackwardParameters p) {
  const int tile = static_cast<int>(blockIdx.x) % p.order.tiles;
  const auto [batch, head, dilation_class] =
      HeadAndClass::of(static_cast<int>(blockIdx.x) / p.order.tiles, p.kv_heads, p.classes.count);
  const std::int64_t first = std::int64_t{tile} * Tile::kv_rows;
  const std::int64_t rows =
      min(static_cast<std::int64_t>(Tile::kv_rows), p.classes.rows(p.kv_rows, dilation_class) - first);
  const int quads = (Tile::clipped ? p.columns : Tile::head_dim) / 4;
  for (int i = static_cast<int>(threadIdx.x); i < rows * quads; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = p.classes.row(first + i / quads, dilation_class);
    for (const gpu::Rows<float>& of : {p.dk, p.dv})
      *reinterpret_cast<float4*>(of.at(batch, head, row) + i % quads * 4) = make_float4(0, 0, 0, 0);
  }
}

}  // namespace annulus::attention::hopper
