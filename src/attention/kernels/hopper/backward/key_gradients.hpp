#pragma once

#include "attention/kernels/hopper/backward/alternating.hpp"
#include "attention/kernels/hopper/backward/producer.hpp"
#include "attention/kernels/hopper/backward/products.hpp"

/// dK and dV alone, at head dimensions 192 and 256, where each of them fills the registers of one warpgroup;
/// up to 128 and for fine block lists: backward/alternating.hpp. One warpgroup computes Sᵀ = K·Qᵀ and dV +=
/// Pᵀ·dO, and hands P (of capped scores its derivative) to the other one, which computes dPᵀ = V·dOᵀ and dK
/// += dSᵀ·Q. While one takes exponentials the tensor cores work for the other.
namespace annulus::attention::hopper {

/// A thread's part of P, 64 × 64: the same thread of the other warpgroup holds the same places of dP.
template <class Tile>
class ProbabilityExchange {
 public:
  __device__ __forceinline__ explicit ProbabilityExchange(const BackwardSharedMemory<Tile>& memory)
      : memory_(memory), place_(memory.p() + threadIdx.x % warpgroup * 16) {}

  __device__ __forceinline__ void put(const float (&p)[32]) {
    wait(memory_.p_empty(), parity_ ^ 1);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      store_shared(place_ + j * warpgroup * 16,
                   make_int4(__float_as_int(p[4 * j]), __float_as_int(p[4 * j + 1]),
                             __float_as_int(p[4 * j + 2]), __float_as_int(p[4 * j + 3])));
    }
    handed_over(memory_.p_full());
  }
  __device__ __forceinline__ void get(float (&p)[32]) {
    wait(memory_.p_full(), parity_);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int4 four = load_shared_int4(place_ + j * warpgroup * 16);
      p[4 * j] = __int_as_float(four.x);
      p[4 * j + 1] = __int_as_float(four.y);
      p[4 * j + 2] = __int_as_float(four.z);
      p[4 * j + 3] = __int_as_float(four.w);
    }
    handed_over(memory_.p_empty());
  }

 private:
  __device__ __forceinline__ void handed_over(std::uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(barrier);
    parity_ ^= 1;
  }

  const BackwardSharedMemory<Tile>& memory_;
  std::uint32_t place_;
  int parity_ = 0;
};

/// The warpgroup of S, P and dV. `lists`: of a block list.
template <class T, class Tile, bool lists>
__device__ __forceinline__ void value_gradient_consumer(const BackwardParameters& p,
                                                        const BackwardSharedMemory<Tile>& memory) {
  using Memory = BackwardSharedMemory<Tile>;
  constexpr int V = Tile::v_dim, M = Tile::q_rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, own_column = lane % 4 * 2;
  const int key_in_tile = static_cast<int>(threadIdx.x) % warpgroup / 32 * 16 + lane / 4;
  const MatrixDescriptor k = MatrixDescriptor::of(memory.k(), Memory::kv_atom);
  const MatrixDescriptor q = MatrixDescriptor::of(memory.q(0), Memory::q_atom),
                         d_out = MatrixDescriptor::of(memory.d_out(0), Memory::q_atom);
  const int lse2_address = static_cast<int>(memory.lse2(0)) + own_column * 4;
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  ProbabilityExchange<Tile> exchange(memory);
  PipelineState<Tile::stages> at;
  for (int n = 0;; ++n) {
    const WorkTile work = memory.work().get(n);
    if (work.head < 0) return;
    RowSpan spans[2];
    load_spans(spans, p.tile_tables, p.classes, work.head % p.classes.count,
               lists ? p.tile_tables.table_of(work.head * p.group) : 0, p.kv_rows,
               work.tile * Tile::kv_rows + key_in_tile);
    float dv[V / 2], s[M / 2];
    std::uint32_t probabilities[M / 4];
    [[maybe_unused]] RowsInRegisters<Tile, Tile::head_dim> k_rows;
    int flags = TileInfo::last;
#pragma unroll
    for (int i = 0; i < V / 2; ++i) dv[i] = 0.0f;

    // S of the tile at `at`, without waiting for it.
    const auto issue_s = [&] {
      wait(memory.q_full(at.stage), at.parity);
      flags = uniform(TileInfo::flags(memory.tile_info(at.stage)));
      wgmma_fence();
      if constexpr (Tile::keys_in_registers) {
        issue_scores<T, Tile, M>(s, k_rows, q + at.stage * Memory::q_bytes);
      } else {
        issue_scores<T, Tile, M>(s, k, q + at.stage * Memory::q_bytes);
      }
    };
    const auto take_probabilities = [&] {
      fence_operand(s);
      const auto lse2_of = [&](int j) {
        return load_shared_pair(lse2_address + at.stage * (M * 4) + 32 * j);
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
      if ((flags & TileInfo::partial) != 0) {
        const int tile = uniform(TileInfo::tile(memory.tile_info(at.stage)));
        for_each_outside<M>(spans, tile * M + own_column, clear);
        if (lists && (flags & TileInfo::bits) != 0) {
          for_each_missing_bit<M, true>(
              p.tile_tables.bits,
              p.tile_tables.table_of(work.head * p.group + TileInfo::head_in_group(flags)) *
                  p.tile_tables.bits.words_of_list,
              work.tile * Tile::kv_rows + key_in_tile, p.kv_rows, tile, own_column, clear);
        }
      }
      release(memory.q_empty(at.stage));
      exchange.put(s);
      if constexpr (Tile::capped) return;
#pragma unroll
      for (int i = 0; i < M / 4; ++i) probabilities[i] = gpu::pack<T>(s[2 * i], s[2 * i + 1]);
    };
    const auto issue_dv = [&] {
      wait(memory.d_out_full(at.stage), at.parity);
      wgmma_fence();
      issue_gradient<T, M, V>(dv, probabilities, d_out + at.stage * Memory::d_out_bytes);
      wgmma_commit();
    };
    if (work.runs > 0) {
      if constexpr (Tile::keys_in_registers) {
        wait(memory.q_full(at.stage), at.parity);
        k_rows.load(memory.k());
        __syncwarp();
        release(memory.kv_empty());
      }
      issue_s();
      wgmma_wait<0>();
      take_probabilities();
      while ((flags & TileInfo::last) == 0) {
        issue_dv();
        const int stage = at.stage;
        at.advance();
        issue_s();
        wgmma_wait<1>();
        fence_operand(dv);
        fence_operand(probabilities);
        release(memory.d_out_empty(stage));
        wgmma_wait<0>();
        take_probabilities();
      }
      issue_dv();
      wgmma_wait<0>();
      fence_operand(dv);
      fence_operand(probabilities);
      release(memory.d_out_empty(at.stage));
      at.advance();
    }
    if (!Tile::keys_in_registers || work.runs == 0) release(memory.kv_empty());
    const auto [batch, kv_head, dilation_class] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    leave_gradient<V, Tile::clipped>(p.dv, p.fresh_dkv, p.dv_factor, dv, batch, kv_head, p.classes,
                                     dilation_class, p.kv_rows, p.columns,
                                     work.tile * Tile::kv_rows + key_in_tile, own_column);
  }
}

/// The warpgroup of dP, dS and dK.
template <class T, class Tile>
__device__ __forceinline__ void key_gradient_consumer(const BackwardParameters& p,
                                                      const BackwardSharedMemory<Tile>& memory) {
  using Memory = BackwardSharedMemory<Tile>;
  constexpr int D = Tile::head_dim, M = Tile::q_rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, own_column = lane % 4 * 2;
  const int key_in_tile = static_cast<int>(threadIdx.x) % warpgroup / 32 * 16 + lane / 4;
  const MatrixDescriptor v = MatrixDescriptor::of(memory.v(), Memory::kv_atom);
  const MatrixDescriptor q = MatrixDescriptor::of(memory.q(0), Memory::q_atom),
                         d_out = MatrixDescriptor::of(memory.d_out(0), Memory::q_atom);
  const int d_address = static_cast<int>(memory.d(0)) + own_column * 4;
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  ProbabilityExchange<Tile> exchange(memory);
  PipelineState<Tile::stages> at;
  for (int n = 0;; ++n) {
    const WorkTile work = memory.work().get(n);
    if (work.head < 0) return;
    float dk[D / 2], dp[M / 2], probabilities[M / 2];
    std::uint32_t ds[M / 4];
    [[maybe_unused]] RowsInRegisters<Tile, Tile::v_dim> v_rows;
    int flags = TileInfo::last;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = 0.0f;

    const auto issue_dp = [&] {
      wait(memory.d_out_full(at.stage), at.parity);
      wgmma_fence();
      if constexpr (Tile::keys_in_registers) {
        issue_scores<T, Tile, M>(dp, v_rows, d_out + at.stage * Memory::d_out_bytes);
      } else {
        issue_scores<T, Tile, M, Tile::v_dim>(dp, v, d_out + at.stage * Memory::d_out_bytes);
      }
    };
    const auto take_score_gradients = [&] {
      fence_operand(dp);
      flags = uniform(TileInfo::flags(memory.tile_info(at.stage)));  // P comes after it
      score_gradients<T, M>(ds, probabilities, dp,
                            [&](int j) { return load_shared_pair(d_address + at.stage * (M * 4) + 32 * j); });
      release(memory.d_out_empty(at.stage));
    };
    const auto issue_dk = [&] {
      wait(memory.q_full(at.stage), at.parity);
      wgmma_fence();
      issue_gradient<T, M, D>(dk, ds, q + at.stage * Memory::q_bytes);
      wgmma_commit();
    };
    if (work.runs > 0) {
      if constexpr (Tile::keys_in_registers) {
        wait(memory.d_out_full(at.stage), at.parity);
        v_rows.load(memory.v());
        __syncwarp();
        release(memory.kv_empty());
      }
      issue_dp();
      exchange.get(probabilities);
      wgmma_wait<0>();
      take_score_gradients();
      while ((flags & TileInfo::last) == 0) {
        issue_dk();
        const int stage = at.stage;
        at.advance();
        issue_dp();
        wgmma_wait<1>();
        fence_operand(dk);
        fence_operand(ds);
        release(memory.q_empty(stage));
        exchange.get(probabilities);
        wgmma_wait<0>();
        take_score_gradients();
      }
      issue_dk();
      wgmma_wait<0>();
      fence_operand(dk);
      fence_operand(ds);
      release(memory.q_empty(at.stage));
      at.advance();
    }
    if (!Tile::keys_in_registers || work.runs == 0) release(memory.kv_empty());
    const auto [batch, kv_head, dilation_class] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    leave_gradient<D, Tile::clipped>(p.dk, p.fresh_dkv, p.dk_factor, dk, batch, kv_head, p.classes,
                                     dilation_class, p.kv_rows, p.columns,
                                     work.tile * Tile::kv_rows + key_in_tile, own_column);
  }
}

template <class T, class Tile, bool lists>
__global__ void __launch_bounds__(Tile::threads, 1)
    key_gradient_kernel(const __grid_constant__ BackwardParameters p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const BackwardSharedMemory<Tile> memory(dynamic);
  start_block(memory, {&p.q, &p.d_out, &p.k, &p.v});
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup);
  if (group == 0) {
    setmaxnreg_dec<Tile::producer_registers>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) {
      backward_producer<Tile, lists, TileLoads::q_and_k>(p, memory);
    } else if (warp == 1) {
      backward_producer<Tile, lists, TileLoads::d_out_and_v>(p, memory);
    }
  } else {
    setmaxnreg_inc<Tile::consumer_registers>();
    if constexpr (Tile::alternates) {
      alternating_consumer<T, Tile>(p, memory, group - 1);
    } else if (group == 1) {
      value_gradient_consumer<T, Tile, lists>(p, memory);
    } else {
      key_gradient_consumer<T, Tile>(p, memory);
    }
  }
}

}  // namespace annulus::attention::hopper
