#pragma once

#include "attention/gpu/problem.hpp"
#include "attention/hopper/backward_visits.hpp"

/// The warps of the backward pass that bring tiles to shared memory and say what they are.
namespace annulus::attention::hopper {

/// The copying warp. K comes with the first Q, V with the first dO; where consumers alternate, each with a
/// barrier of its own.
template <class Tile, bool lists>
__device__ __forceinline__ void copy_backward(const BackwardParameters& p,
                                              const BackwardMemory<Tile>& memory) {
  using Memory = BackwardMemory<Tile>;
  const bool copies = threadIdx.x % 32 == 0;
  const bool lists_of_heads = lists && p.lists_of_heads;
  WorkQueue queue(p.order, p.walk, lists_of_heads ? p.group : 1,
                  lists_of_heads ? p.group / p.walk.heads_of_list : 1, p.tickets, p.fresh_dkv);
  RingPosition<Tile::stages> at;
  for (int n = 0;; ++n) {
    if (copies) memory.work().put(n, queue.next());
    const Work work = memory.work().get(n);
    if (work.head < 0) return;
    const auto [batch, kv_head, residue] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    const int q_residue = p.classes.queries_of(residue);
    bool first = true;
    wait(memory.kv_empty(), (n & 1) ^ 1);
    __syncwarp();
    // Computing warps are done at once with work that has no tiles. This warp takes part in the phase, so
    // that it cannot end before this warp has seen the end of the one before.
    if (copies) arrive(memory.kv_empty());
    for_each_visit<lists>(p, work, kv_head, [&](const Cursor<true>& cursor, int head, bool) {
      const auto load = [&](const RowMaps& queries, std::uint32_t to, const RowMaps& keys,
                            std::uint32_t keys_to, std::uint32_t full, std::uint32_t empty,
                            std::uint32_t own_barrier) {
        wait(empty, at.parity ^ 1);
        if (!copies) return;
        const std::uint32_t keys_full = Tile::alternates ? own_barrier : full;
        if (Tile::alternates && first) arrive_expecting(keys_full, Memory::kv_bytes);
        arrive_expecting(full, Memory::q_bytes + (!Tile::alternates && first ? Memory::kv_bytes : 0));
        if (first) {
#pragma unroll
          for (int panel = 0; panel < Tile::panels; ++panel) {
            keys.load(keys_to + panel * Memory::kv_panel, keys_full, panel * panel_columns, residue,
                      work.tile * Tile::kv_rows, kv_head, batch);
          }
        }
#pragma unroll
        for (int panel = 0; panel < Tile::panels; ++panel) {
          queries.load(to + panel * Memory::q_panel, full, panel * panel_columns, q_residue,
                       cursor.tile() * Tile::q_rows, head, batch);
        }
      };
      load(p.q, memory.q(at.stage), p.k, memory.k(), memory.q_full(at.stage), memory.q_empty(at.stage),
           memory.k_full());
      load(p.d_out, memory.d_out(at.stage), p.v, memory.v(), memory.d_out_full(at.stage),
           memory.d_out_empty(at.stage), memory.v_full());
      __syncwarp();
      at.advance();
      first = false;
    });
  }
}

/// What a warp brings of the queries. Who brings LSE says what is visited, too.
enum class Statistics { lse, d, both };

/// A warp that brings statistics of the queries to the computing warps, visit by visit. Those of the next
/// visit are under way while it waits for the place of these.
template <class Tile, bool lists, Statistics which>
__device__ __forceinline__ void bring_statistics(const BackwardParameters& p,
                                                 const BackwardMemory<Tile>& memory) {
  constexpr int rows_of_lane = Tile::q_rows / 32;
  constexpr bool ahead = which != Statistics::both;  // a warp has too few registers for both
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Tile::stages> at;
  struct Visited {
    RowStatistics rows[rows_of_lane];
    int tile, head_and_flags;
  };
  const auto bring = [&](const Visited& of) {
    if constexpr (which != Statistics::d) {
      wait(memory.q_empty(at.stage), at.parity ^ 1);
#pragma unroll
      for (int i = 0; i < rows_of_lane; ++i)
        store_shared(memory.lse2(at.stage) + (i * 32 + lane) * 4, of.rows[i].lse2(p));
      if (lane == 0) Visit::put(memory.visit(at.stage), of.tile, of.head_and_flags);
      arrive(memory.q_full(at.stage));  // each lane for what it has stored
    }
    if constexpr (which != Statistics::lse) {
      wait(memory.d_out_empty(at.stage), at.parity ^ 1);
#pragma unroll
      for (int i = 0; i < rows_of_lane; ++i)
        store_shared(memory.d(at.stage) + (i * 32 + lane) * 4, of.rows[i].d_or_zero());
      arrive(memory.d_out_full(at.stage));
    }
    at.advance();
  };
  for (int n = 0;; ++n) {
    const Work work = memory.work().get(n);
    if (work.head < 0) return;
    const auto [batch, kv_head, residue] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    const int q_residue = p.classes.queries_of(residue);
    Visited before{};
    bool some = false;
    for_each_visit<lists>(p, work, kv_head, [&](const Cursor<true>& cursor, int head, bool last) {
      Visited of;
#pragma unroll
      for (int i = 0; i < rows_of_lane; ++i)
        of.rows[i] =
            RowStatistics::of(p, batch, head, q_residue, cursor.tile() * Tile::q_rows + i * 32 + lane);
      of.tile = cursor.tile();
      of.head_and_flags =
          Visit::head_and_flags(head - kv_head * p.group, Visit::flags_of(cursor.how(), last));
      if constexpr (ahead) {
        if (some) bring(before);
        before = of;
        some = true;
      } else {
        bring(of);
      }
    });
    if (some) bring(before);
  }
}

}  // namespace annulus::attention::hopper
