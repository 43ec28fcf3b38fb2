#pragma once

#include "attention/hopper/backward_copies.hpp"
#include "attention/hopper/backward_products.hpp"
#include "attention/hopper/query_gradient.hpp"

/// The backward pass (BurstEngine, Algorithm 2): P = exp(S − LSE), dV += Pᵀ·dO, dS = P∘(dO·Vᵀ − D), dQ +=
/// scale·dS·K, dK += scale·dSᵀ·Q.
///
/// A block owns 128 or 192 keys of a kv head and walks over the queries of all heads that read it, so that dK
/// and dV stay in registers and are added once. Scores are computed transposed (keys × queries): Pᵀ and dSᵀ
/// then feed dV and dK straight from registers, and only dS passes through shared memory, for dQ. The copy
/// engine adds dQ to device memory (query_gradient.hpp). Head dimension 256 has a form of its own
/// (backward_keys.hpp).
///
/// dQ of a tile of queries (a visit) takes the dS of all warpgroups. They take turns at it: the others say
/// that their dS is there and go on to the next visit, so that the tensor cores have work while one of them
/// takes exponentials or writes dQ. With block lists at head dimension 64 all meet at every visit instead.
namespace annulus::attention::hopper {

/// A warpgroup that computes 64 keys. `lists`: of a block list. Its code for bits, even where it is passed
/// over, takes registers from the products of all others.
template <class T, class Tile, bool lists>
__device__ __forceinline__ void compute_backward(const BackwardParameters& p,
                                                 const BackwardMemory<Tile>& memory) {
  using Memory = BackwardMemory<Tile>;
  using Gradient = QueryGradient<T, Tile>;
  constexpr int D = Tile::head_dim, M = Tile::q_rows;
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup - 1);
  // What few places ask for is computed there again: registers for it would be taken from the products.
  const auto thread = [] { return anew(static_cast<int>(threadIdx.x)); };
  const int first_key = group * 64;
  const auto key_in_tile = [&] {
    const int here = thread();
    return first_key + here % warpgroup / 32 * 16 + here % 32 / 4;
  };
  const auto own_column = [&] { return thread() % 4 * 2; };
  const int lane = static_cast<int>(threadIdx.x) % 32;

  const Descriptor k = Descriptor::of(memory.k(), Memory::kv_panel),
                   v = Descriptor::of(memory.v(), Memory::kv_panel);
  const Descriptor k_rows = k + first_key * panel_row_bytes, v_rows = v + first_key * panel_row_bytes;
  const Descriptor q = Descriptor::of(memory.q(0), Memory::q_panel),
                   d_out = Descriptor::of(memory.d_out(0), Memory::q_panel);
  const Descriptor ds_for_dq =
      Descriptor::of(memory.ds(0), Memory::ds_panel) + Gradient::first_row(group) / 64 * Memory::ds_panel;
  const int ds_place = static_cast<int>(
      swizzled(memory.ds(0), first_key + thread() % warpgroup / 32 * 16 + lane % 16, lane / 16));
  const int statistics_place = static_cast<int>(memory.lse2(0)) + own_column() * 4;

  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  RingPosition<Tile::stages> at;
  int visits = 0;       // of three consumers, whose visits use the two buffers of dQ in turn
  int turn_parity = 0;  // of two consumers, each of which has a stage and a buffer of dQ for all its turns
  Gradient gradient(p, memory, group);
  for (int n = 0;; ++n) {
    const Work work = memory.work().get(n);
    if (work.head < 0) return;
    RowSpan spans[2];
    const int first_table = lists ? p.walk.table_of(work.head * p.group) : 0;
    load_spans(spans, p.walk, p.classes, work.head % p.classes.count, first_table, p.kv_rows,
               work.tile * Tile::kv_rows + key_in_tile());
    float dk[D / 2], dv[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0.0f;

    // dQ = dS · K, all keys of the tile.
    const auto issue_query_gradient = [&](float(&dq)[D / 2], int stage) {
      const Descriptor ds_factor = ds_for_dq + stage * Memory::ds_bytes;
      products_begin();
#pragma unroll
      for (int i = 0; i < Tile::kv_rows / 16; ++i) {
        Product<T, D>::template shared<true, true>(dq, ds_factor + i * 16 * panel_row_bytes,
                                                   k + i * 16 * panel_row_bytes, i > 0);
      }
      products_commit();
    };
    // That of a visit that was this warpgroup's turn. `meanwhile`: what is done while the product runs.
    const auto compute_dq = [&](int parity, const RingPosition<2>& buffer, const auto& meanwhile) {
      float dq[D / 2];
      wait(memory.ds_full(group), parity);
      issue_query_gradient(dq, group);
      meanwhile();
      products_wait<0>();
      pin(dq);
      release(memory.ds_empty(group));
      gradient.put(dq, buffer);
    };
    bool dq_is_due = false;
    const auto compute_due_dq = [&](const auto& meanwhile) {
      compute_dq(turn_parity, {group, turn_parity}, meanwhile);
      turn_parity ^= 1;
    };

    const auto step = [&] {
      float s[M / 2], dp[M / 2];
      const Descriptor q_stage = q + at.stage * Memory::q_bytes,
                       d_out_stage = d_out + at.stage * Memory::q_bytes;
      wait(memory.q_full(at.stage), at.parity);
      // Loads from shared memory take long while products read it, so the first ones of a tile are under way
      // before. With few queries and two consumers LSE and D of all of them fit into registers.
      constexpr bool ahead = M == 64 && Tile::consumers == 2;
      const int flags = Visit::flags(memory.visit(at.stage));
      const int lse2_place = statistics_place + at.stage * (M * 4);
      const int d_place = lse2_place + (Memory::d_offset - Memory::lse2_offset);
      float2 lse2[M / 8];
      if constexpr (ahead) {
#pragma unroll
        for (int j = 0; j < M / 8; ++j) lse2[j] = load_shared_pair(lse2_place + 32 * j);
      }
      products_begin();
      issue_scores<T, Tile, M>(s, k_rows, q_stage);
      wait(memory.d_out_full(at.stage), at.parity);
      products_begin();
      issue_scores<T, Tile, M>(dp, v_rows, d_out_stage);
      products_wait<1>();
      pin(s);
      take_powers<M>(s, p.factor, [&](int j) {
        if constexpr (!ahead) lse2[j] = load_shared_pair(lse2_place + 32 * j);
        return lse2[j];
      });
      // A branch at run time, because it keeps the exponentials before the wait for dP: in one basic block
      // ptxas moves the wait up, and they no longer overlap that product.
      if ((uniform(flags) & Visit::partial) != 0) {
        const int tile = uniform(Visit::tile(memory.visit(at.stage)));
        clear_outside<M>(s, spans, tile * M + own_column());
        if (lists && (uniform(flags) & Visit::bits) != 0) {
          const int table = p.walk.table_in_group(first_table, Visit::head_in_group(uniform(flags)), p.group);
          for_each_missing_bit<M, true>(p.walk.bits, table * p.walk.bits.words_of_list,
                                        anew(work.tile) * Tile::kv_rows + key_in_tile(), p.kv_rows, tile,
                                        own_column(), [&](int at) { s[at] = 0.0f; });
        }
      }
      std::uint32_t probabilities[M / 4];
      const auto pack_probabilities = [&] {
#pragma unroll
        for (int i = 0; i < M / 4; ++i) probabilities[i] = gpu::pack<T>(s[2 * i], s[2 * i + 1]);
      };
      if constexpr (!Tile::takes_turns) pack_probabilities();

      float2 d[M / 8];
      if constexpr (ahead) {
#pragma unroll
        for (int j = 0; j < M / 8; ++j) d[j] = load_shared_pair(d_place + 32 * j);
      }
      products_wait<0>();
      pin(dp);
      std::uint32_t ds[M / 4];
      score_gradients<T, M>(ds, s, dp, [&](int j) {
        if constexpr (!ahead) d[j] = load_shared_pair(d_place + 32 * j);
        return d[j];
      });
      if constexpr (Tile::takes_turns) pack_probabilities();

      products_begin();
      issue_gradient<T, M, D>(dv, probabilities, d_out_stage);
      products_commit();
      // dSᵀ as it stands: rows are keys. The product reads it transposed as the left factor of dQ. With two
      // stages whoever has passed the barrier of one iteration has finished reading what the iteration
      // before wrote; where consumers take turns, they say when.
      const int ds_start = anew(ds_place);
      if constexpr (Tile::takes_turns) wait(memory.ds_empty(at.stage), at.parity ^ 1);
#pragma unroll
      for (int j = 0; j < M / 16; ++j) {
        store_matrices((ds_start ^ j % 4 * 32) + at.stage * Memory::ds_bytes + j / 4 * Memory::ds_panel,
                       ds + 4 * j);
      }
      fence_shared_for_engines();
      const auto issue_key_gradient = [&] {
        products_begin();
        issue_gradient<T, M, D>(dk, ds, q_stage);
        products_commit();
      };
      if constexpr (Tile::takes_turns) {
        __syncwarp();
        release(memory.ds_full(at.stage));
        issue_key_gradient();
        const bool has_turn = at.stage == group;
        const auto key_gradients_done = [&] {
          pin(dv);
          pin(dk);
          pin(probabilities);
          pin(ds);
          release(memory.d_out_empty(at.stage));
          release(memory.q_empty(at.stage));
        };
        if (Tile::dq_a_visit_later ? dq_is_due : has_turn) {
          const auto wait_for_key_gradients = [&] {
            products_wait<1>();
            key_gradients_done();
          };
          if constexpr (!Tile::dq_a_visit_later) {
            compute_dq(at.parity, {visits & 1, visits >> 1 & 1}, wait_for_key_gradients);
          } else if constexpr (D <= 96) {
            compute_due_dq(wait_for_key_gradients);
          } else {  // dQ takes the registers of P and dS
            products_wait<0>();
            key_gradients_done();
            compute_due_dq([] {});
          }
        } else {
          products_wait<1>();
          pin(dv);
          release(memory.d_out_empty(at.stage));
          products_wait<0>();
          pin(dk);
          pin(probabilities);
          release(memory.q_empty(at.stage));
        }
        if constexpr (Tile::dq_a_visit_later) {
          dq_is_due = has_turn;
        } else {
          ++visits;
        }
      } else {
        float dq[D / 2];
        named_sync(1, 2 * warpgroup);
        issue_query_gradient(dq, at.stage);
        products_wait<1>();
        pin(dv);
        pin(probabilities);
        release(memory.d_out_empty(at.stage));
        issue_key_gradient();  // while dQ leaves
        products_wait<1>();
        pin(dq);
        gradient.put(dq, at);
        products_wait<0>();
        pin(dk);
        release(memory.q_empty(at.stage));
      }
      pin(ds);
      at.advance();
      return (uniform(flags) & Visit::last) == 0;
    };

    if (work.runs > 0) {
      while (step()) {
      }
    }
    if constexpr (Tile::dq_a_visit_later) {
      if (dq_is_due) compute_due_dq([] {});
    }
    release(memory.kv_empty());

    const auto [batch, kv_head, residue] = HeadAndClass::of(anew(work.head), p.kv_heads, p.classes.count);
    const int own_key = anew(work.tile) * Tile::kv_rows + key_in_tile();
    leave_gradient<D>(p.dk, p.fresh_dkv, p.dk_factor, dk, batch, kv_head, p.classes, residue, p.kv_rows,
                      own_key, own_column());
    leave_gradient<D>(p.dv, p.fresh_dkv, p.dv_factor, dv, batch, kv_head, p.classes, residue, p.kv_rows,
                      own_key, own_column());
  }
}

template <class T, class Tile, bool lists>
__global__ void __launch_bounds__(Tile::threads, 1)
    backward_kernel(const __grid_constant__ BackwardParameters p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const BackwardMemory<Tile> memory(dynamic);
  if (threadIdx.x == 0) {
    for (const RowMaps* maps : {&p.q, &p.d_out, &p.k, &p.v, &p.dq_maps}) maps->prefetch();
    memory.init();
  }
  __syncthreads();
  if (threadIdx.x < warpgroup) {
    lower_registers<Tile::producer_registers>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) {
      copy_backward<Tile, lists, Copies::q_and_k>(p, memory);
    } else if (warp == 1) {
      copy_backward<Tile, lists, Copies::d_out_and_v>(p, memory);
    } else {
      add_query_gradients<Tile, lists>(p, memory, warp - 2);
    }
  } else {
    raise_registers<Tile::consumer_registers>();
    compute_backward<T, Tile, lists>(p, memory);
  }
}

}  // namespace annulus::attention::hopper
