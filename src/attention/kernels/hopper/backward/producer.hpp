#pragma once

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/hopper/backward/query_tiles.hpp"

/// The warps of the backward pass that bring tiles to shared memory and say what they are.
namespace annulus::attention::hopper {

/// What a producer warp brings: Q with LSE, and K with the first Q; or dO with D, and V with the first dO.
/// Where consumers alternate, K and V have barriers of their own.
enum class TileLoads { q_and_k, d_out_and_v };

/// A producer warp. That of Q takes the works, too.
template <class Tile, bool lists, TileLoads what>
__device__ __forceinline__ void backward_producer(const BackwardParameters& p,
                                                  const BackwardSharedMemory<Tile>& memory) {
  using Memory = BackwardSharedMemory<Tile>;
  constexpr bool of_q = what == TileLoads::q_and_k;
  constexpr int atoms = of_q ? Tile::atoms : Tile::v_atoms, query_bytes = atoms * Memory::q_atom,
                key_bytes = atoms * Memory::kv_atom;
  const RowMaps &queries = of_q ? p.q : p.d_out, &keys = of_q ? p.k : p.v;
  const bool copies = threadIdx.x % 32 == 0;
  const bool lists_of_heads = lists && p.lists_of_heads;
  TileScheduler queue(p.order, p.tile_tables, lists_of_heads ? p.group : 1,
                      lists_of_heads ? p.group / p.tile_tables.heads_of_list : 1, p.tile_counter,
                      p.fresh_dkv);
  PipelineState<Tile::stages> at;
  for (int n = 0;; ++n) {
    if (of_q && copies) memory.work().put(n, queue.next());
    const WorkTile work = memory.work().get(n);
    if (work.head < 0) return;
    const auto [batch, kv_head, dilation_class] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    const int q_class = p.classes.queries_of(dilation_class);
    bool first = true;
    wait(memory.kv_empty(), (n & 1) ^ 1);
    __syncwarp();
    // Consumer warps are done at once with work that has no tiles. This warp takes part in the phase, so
    // that it cannot end before this warp has seen the end of the one before.
    if (copies) arrive(memory.kv_empty());
    for_each_query_tile<lists>(p, work, kv_head, [&](const TileIterator<true>& cursor, int head, bool last) {
      const std::uint32_t full = of_q ? memory.q_full(at.stage) : memory.d_out_full(at.stage);
      wait(of_q ? memory.q_empty(at.stage) : memory.d_out_empty(at.stage), at.parity ^ 1);
      if (copies) {
        if constexpr (of_q) {
          TileInfo::put(
              memory.tile_info(at.stage), cursor.tile(),
              TileInfo::head_and_flags(head - kv_head * p.group, TileInfo::flags_of(cursor.how(), last)));
        }
        const std::uint32_t keys_full = !Tile::alternates ? full : of_q ? memory.k_full() : memory.v_full();
        if (Tile::alternates && first) arrive_expecting(keys_full, key_bytes);
        arrive_expecting(
            full, query_bytes + Memory::statistics_bytes + (!Tile::alternates && first ? key_bytes : 0));
#pragma unroll
        for (int atom = 0; first && atom < atoms; ++atom) {
          keys.of_class(dilation_class)
              .load((of_q ? memory.k() : memory.v()) + atom * Memory::kv_atom, keys_full, atom * atom_columns,
                    work.tile * Tile::kv_rows, kv_head, batch);
        }
#pragma unroll
        for (int atom = 0; atom < atoms; ++atom) {
          queries.with_class(q_class, [&](const ClassMap& map) {
            map.load((of_q ? memory.q(at.stage) : memory.d_out(at.stage)) + atom * Memory::q_atom, full,
                     atom * atom_columns, cursor.tile() * Tile::q_rows, head, batch);
          });
        }
        const int tile = ((batch * p.heads + head) * p.classes.count + q_class) * p.q_tiles + cursor.tile();
        load_bytes(of_q ? memory.lse2(at.stage) : memory.d(at.stage),
                   p.statistics + std::int64_t{tile} * (2 * Tile::q_rows) + (of_q ? 0 : Tile::q_rows),
                   Memory::statistics_bytes, full);
      }
      __syncwarp();
      at.advance();
      first = false;
    });
  }
}

}  // namespace annulus::attention::hopper
