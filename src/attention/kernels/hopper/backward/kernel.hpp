#pragma once

#include "attention/kernels/hopper/backward/dq_accumulation.hpp"
#include "attention/kernels/hopper/backward/producer.hpp"
#include "attention/kernels/hopper/backward/products.hpp"

/// The backward pass (BurstEngine, Algorithm 2): P = exp(S − LSE), dV += Pᵀ·dO, dS = P∘(dO·Vᵀ − D), dQ +=
/// scale·dS·K, dK += scale·dSᵀ·Q.
///
/// A block owns 128 or 192 keys of a kv head and loops over the queries of all heads that read it, so that dK
/// and dV stay in registers and are added once. Scores are computed transposed (keys × queries): Pᵀ and dSᵀ
/// then feed dV and dK straight from registers, and only dS passes through shared memory, for dQ. TMA adds dQ
/// to device memory (backward/dq_accumulation.hpp). Head dimension 256 has a form of its own
/// (backward/key_gradients.hpp).
///
/// dQ of a tile of queries (a visit) takes the dS of all warpgroups. They take turns at it: the others say
/// that their dS is there and go on to the next visit, so that the tensor cores have work while one of them
/// takes exponentials or writes dQ. With block lists at head dimension 64 all meet at every visit instead.
namespace annulus::attention::hopper {

/// A warpgroup that computes 64 keys. `lists`: of a block list. Its code for bits, even where it is passed
/// over, takes registers from the products of all others.
// Longer than other functions: a step issues five products, which share the accumulators of S, dP, dK and dV,
// the packed P and dS, and the barriers that hand stages on. The order of its waits is what overlaps products
// with exponentials, and is read in one place. Nobody has measured whether cutting it would cost registers.
template <class T, class Tile, bool lists>
__device__ __forceinline__ void backward_consumer(const BackwardParameters& p,
                                                  const BackwardSharedMemory<Tile>& memory) {
  using Memory = BackwardSharedMemory<Tile>;
  using Gradient = QueryGradient<T, Tile>;
  constexpr int D = Tile::head_dim, M = Tile::q_rows;
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup - 1);
  // What few places ask for is computed there again: registers for it would be taken from the products.
  const auto thread = [] { return recomputed(static_cast<int>(threadIdx.x)); };
  const int first_key = group * 64;
  const auto key_in_tile = [&] {
    const int here = thread();
    return first_key + here % warpgroup / 32 * 16 + here % 32 / 4;
  };
  const auto own_column = [&] { return thread() % 4 * 2; };
  const int lane = static_cast<int>(threadIdx.x) % 32;

  const MatrixDescriptor k = MatrixDescriptor::of(memory.k(), Memory::kv_atom),
                         v = MatrixDescriptor::of(memory.v(), Memory::kv_atom);
  const MatrixDescriptor k_rows = k + first_key * atom_row_bytes, v_rows = v + first_key * atom_row_bytes;
  const MatrixDescriptor q = MatrixDescriptor::of(memory.q(0), Memory::q_atom),
                         d_out = MatrixDescriptor::of(memory.d_out(0), Memory::q_atom);
  const MatrixDescriptor ds_for_dq =
      MatrixDescriptor::of(memory.ds(0), Memory::ds_atom) + Gradient::first_row(group) / 64 * Memory::ds_atom;
  const int ds_address = static_cast<int>(
      swizzled(memory.ds(0), first_key + thread() % warpgroup / 32 * 16 + lane % 16, lane / 16));
  const int statistics_address = static_cast<int>(memory.lse2(0)) + own_column() * 4;

  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  PipelineState<Tile::stages> at;
  int visits = 0;     // of three consumers, whose visits use the two buffers of dQ in turn
  int dq_parity = 0;  // of two consumers, each of which has a stage and a buffer of dQ for all its tiles
  Gradient gradient(p, memory, group);
  for (int n = 0;; ++n) {
    const WorkTile work = memory.work().get(n);
    if (work.head < 0) return;
    RowSpan spans[2];
    const int first_table = lists ? p.tile_tables.table_of(work.head * p.group) : 0;
    load_spans(spans, p.tile_tables, p.classes, work.head % p.classes.count, first_table, p.kv_rows,
               work.tile * Tile::kv_rows + key_in_tile());
    float dk[D / 2], dv[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0.0f;

    // dQ = dS · K, all keys of the tile.
    const auto issue_query_gradient = [&](float(&dq)[D / 2], int stage) {
      const MatrixDescriptor ds_factor = ds_for_dq + stage * Memory::ds_bytes;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < Tile::kv_rows / 16; ++i) {
        Wgmma<T, D>::template shared<true, true>(dq, ds_factor + i * 16 * atom_row_bytes,
                                                 k + i * 16 * atom_row_bytes, i > 0);
      }
      wgmma_commit();
    };
    // That of a visit that was this warpgroup's turn. `meanwhile`: what is done while the product runs.
    const auto compute_dq = [&](int parity, const PipelineState<2>& buffer, const auto& meanwhile) {
      float dq[D / 2];
      wait(memory.ds_full(group), parity);
      issue_query_gradient(dq, group);
      meanwhile();
      wgmma_wait<0>();
      fence_operand(dq);
      release(memory.ds_empty(group));
      gradient.put(dq, buffer);
    };
    bool dq_is_due = false;
    const auto compute_due_dq = [&](const auto& meanwhile) {
      compute_dq(dq_parity, {group, dq_parity}, meanwhile);
      dq_parity ^= 1;
    };

    const auto step = [&] {
      float s[M / 2], dp[M / 2];
      const MatrixDescriptor q_stage = q + at.stage * Memory::q_bytes,
                             d_out_stage = d_out + at.stage * Memory::q_bytes;
      wait(memory.q_full(at.stage), at.parity);
      // Loads from shared memory take long while products read it, so the first ones of a tile are under way
      // before. With few queries and two consumers LSE and D of all of them fit into registers.
      constexpr bool ahead = M == 64 && Tile::consumers == 2;
      const int flags = TileInfo::flags(memory.tile_info(at.stage));
      const int lse2_address = statistics_address + at.stage * (M * 4);
      const int d_address = lse2_address + (Memory::d_offset - Memory::lse2_offset);
      float2 lse2[M / 8];
      if constexpr (ahead) {
#pragma unroll
        for (int j = 0; j < M / 8; ++j) lse2[j] = load_shared_pair(lse2_address + 32 * j);
      }
      wgmma_fence();
      issue_scores<T, Tile, M>(s, k_rows, q_stage);
      wait(memory.d_out_full(at.stage), at.parity);
      wgmma_fence();
      issue_scores<T, Tile, M>(dp, v_rows, d_out_stage);
      wgmma_wait<1>();
      fence_operand(s);
      std::uint32_t probabilities[M / 4];
      const auto lse2_of = [&](int j) {
        if constexpr (!ahead) lse2[j] = load_shared_pair(lse2_address + 32 * j);
        return lse2[j];
      };
      if constexpr (Tile::capped) {
        take_capped_powers<T, M>(s, probabilities, {p.tangent_factor, p.factor}, lse2_of);
      } else {
        take_powers<M>(s, p.factor, lse2_of);
      }
      const auto clear = [&](int where) {
        s[where] = 0.0f;
        if constexpr (Tile::capped) clear_packed(probabilities, where);
      };
      // A branch at run time, because it keeps the exponentials before the wait for dP: in one basic block
      // ptxas moves the wait up, and they no longer overlap that product.
      if ((uniform(flags) & TileInfo::partial) != 0) {
        const int tile = uniform(TileInfo::tile(memory.tile_info(at.stage)));
        for_each_outside<M>(spans, tile * M + own_column(), clear);
        if (lists && (uniform(flags) & TileInfo::bits) != 0) {
          const int table =
              p.tile_tables.table_in_group(first_table, TileInfo::head_in_group(uniform(flags)), p.group);
          for_each_missing_bit<M, true>(p.tile_tables.bits, table * p.tile_tables.bits.words_of_list,
                                        recomputed(work.tile) * Tile::kv_rows + key_in_tile(), p.kv_rows,
                                        tile, own_column(), clear);
        }
      }
      const auto pack_probabilities = [&] {
        if constexpr (Tile::capped) return;  // they are
#pragma unroll
        for (int i = 0; i < M / 4; ++i) probabilities[i] = gpu::pack<T>(s[2 * i], s[2 * i + 1]);
      };
      if constexpr (!Tile::rotates_dq) pack_probabilities();

      float2 d[M / 8];
      // Packed probabilities of capped scores have taken the registers.
      constexpr bool d_ahead = ahead && !Tile::capped;
      if constexpr (d_ahead) {
#pragma unroll
        for (int j = 0; j < M / 8; ++j) d[j] = load_shared_pair(d_address + 32 * j);
      }
      wgmma_wait<0>();
      fence_operand(dp);
      std::uint32_t ds[M / 4];
      score_gradients<T, M>(ds, s, dp, [&](int j) {
        if constexpr (!d_ahead) d[j] = load_shared_pair(d_address + 32 * j);
        return d[j];
      });
      if constexpr (Tile::rotates_dq) pack_probabilities();

      wgmma_fence();
      issue_gradient<T, M, D>(dv, probabilities, d_out_stage);
      wgmma_commit();
      // dSᵀ as it stands: rows are keys. The product reads it transposed as the left factor of dQ. With two
      // stages whoever has passed the barrier of one iteration has finished reading what the iteration
      // before wrote; where consumers take turns, they say when.
      const int ds_start = recomputed(ds_address);
      if constexpr (Tile::rotates_dq) wait(memory.ds_empty(at.stage), at.parity ^ 1);
#pragma unroll
      for (int j = 0; j < M / 16; ++j) {
        store_matrices((ds_start ^ j % 4 * 32) + at.stage * Memory::ds_bytes + j / 4 * Memory::ds_atom,
                       ds + 4 * j);
      }
      fence_shared_for_engines();
      const auto issue_key_gradient = [&] {
        wgmma_fence();
        issue_gradient<T, M, D>(dk, ds, q_stage);
        wgmma_commit();
      };
      if constexpr (Tile::rotates_dq) {
        __syncwarp();
        release(memory.ds_full(at.stage));
        issue_key_gradient();
        const bool owns_dq = at.stage == group;
        const auto key_gradients_done = [&] {
          fence_operand(dv);
          fence_operand(dk);
          fence_operand(probabilities);
          fence_operand(ds);
          release(memory.d_out_empty(at.stage));
          release(memory.q_empty(at.stage));
        };
        if (Tile::dq_a_tile_later ? dq_is_due : owns_dq) {
          const auto wait_for_key_gradients = [&] {
            wgmma_wait<1>();
            key_gradients_done();
          };
          if constexpr (!Tile::dq_a_tile_later) {
            compute_dq(at.parity, {visits & 1, visits >> 1 & 1}, wait_for_key_gradients);
          } else if constexpr (D <= 96) {
            compute_due_dq(wait_for_key_gradients);
          } else {  // dQ takes the registers of P and dS
            wgmma_wait<0>();
            key_gradients_done();
            compute_due_dq([] {});
          }
        } else {
          wgmma_wait<1>();
          fence_operand(dv);
          release(memory.d_out_empty(at.stage));
          wgmma_wait<0>();
          fence_operand(dk);
          fence_operand(probabilities);
          release(memory.q_empty(at.stage));
        }
        if constexpr (Tile::dq_a_tile_later) {
          dq_is_due = owns_dq;
        } else {
          ++visits;
        }
      } else {
        float dq[D / 2];
        bar_sync(NamedBarrier::dq_operands, 2 * warpgroup);
        issue_query_gradient(dq, at.stage);
        wgmma_wait<1>();
        fence_operand(dv);
        fence_operand(probabilities);
        release(memory.d_out_empty(at.stage));
        issue_key_gradient();  // while dQ leaves
        wgmma_wait<1>();
        fence_operand(dq);
        gradient.put(dq, at);
        wgmma_wait<0>();
        fence_operand(dk);
        release(memory.q_empty(at.stage));
      }
      fence_operand(ds);
      at.advance();
      return (uniform(flags) & TileInfo::last) == 0;
    };

    if (work.runs > 0) {
      while (step()) {
      }
    }
    if constexpr (Tile::dq_a_tile_later) {
      if (dq_is_due) compute_due_dq([] {});
    }
    release(memory.kv_empty());

    const auto [batch, kv_head, dilation_class] =
        HeadAndClass::of(recomputed(work.head), p.kv_heads, p.classes.count);
    const int own_key = recomputed(work.tile) * Tile::kv_rows + key_in_tile();
    leave_gradient<D, Tile::clipped>(p.dk, p.fresh_dkv, p.dk_factor, dk, batch, kv_head, p.classes,
                                     dilation_class, p.kv_rows, p.columns, own_key, own_column());
    leave_gradient<D, Tile::clipped>(p.dv, p.fresh_dkv, p.dv_factor, dv, batch, kv_head, p.classes,
                                     dilation_class, p.kv_rows, p.columns, own_key, own_column());
  }
}

template <class T, class Tile, bool lists>
__global__ void __launch_bounds__(Tile::threads, 1)
    backward_kernel(const __grid_constant__ BackwardParameters p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const BackwardSharedMemory<Tile> memory(dynamic);
  start_block(memory, {&p.q, &p.d_out, &p.k, &p.v, &p.dq_maps});
  if (threadIdx.x < warpgroup) {
    setmaxnreg_dec<Tile::producer_registers>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) {
      backward_producer<Tile, lists, TileLoads::q_and_k>(p, memory);
    } else if (warp == 1) {
      backward_producer<Tile, lists, TileLoads::d_out_and_v>(p, memory);
    } else {
      accumulate_query_gradients<Tile, lists>(p, memory, warp - 2);
    }
  } else {
    setmaxnreg_inc<Tile::consumer_registers>();
    backward_consumer<T, Tile, lists>(p, memory);
  }
}

}  // namespace annulus::attention::hopper
