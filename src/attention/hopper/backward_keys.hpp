#pragma once

#include "attention/hopper/backward_alternating.hpp"
#include "attention/hopper/backward_copies.hpp"
#include "attention/hopper/backward_products.hpp"

/// dK and dV alone, at head dimension 256, where each of them fills the registers of one warpgroup; up to 128
/// and for fine block lists: backward_alternating.hpp. One warpgroup computes Sᵀ = K·Qᵀ and dV += Pᵀ·dO, and
/// hands P to the other one, which computes dPᵀ = V·dOᵀ and dK += dSᵀ·Q. While one takes exponentials the
/// tensor cores work for the other.
namespace annulus::attention::hopper {

/// A thread's part of P, 64 × 64: the same thread of the other warpgroup holds the same places of dP.
template <class Tile>
class ProbabilityExchange {
 public:
  __device__ __forceinline__ explicit ProbabilityExchange(const BackwardMemory<Tile>& memory)
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

  const BackwardMemory<Tile>& memory_;
  std::uint32_t place_;
  int parity_ = 0;
};

/// The warpgroup of S, P and dV. `lists`: of a block list.
template <class T, class Tile, bool lists>
__device__ __forceinline__ void compute_value_gradient(const BackwardParameters& p,
                                                       const BackwardMemory<Tile>& memory) {
  using Memory = BackwardMemory<Tile>;
  constexpr int D = Tile::head_dim, M = Tile::q_rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, own_column = lane % 4 * 2;
  const int key_in_tile = static_cast<int>(threadIdx.x) % warpgroup / 32 * 16 + lane / 4;
  const Descriptor k = Descriptor::of(memory.k(), Memory::kv_panel);
  const Descriptor q = Descriptor::of(memory.q(0), Memory::q_panel),
                   d_out = Descriptor::of(memory.d_out(0), Memory::q_panel);
  const int lse2_place = static_cast<int>(memory.lse2(0)) + own_column * 4;
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  ProbabilityExchange<Tile> exchange(memory);
  RingPosition<Tile::stages> at;
  for (int n = 0;; ++n) {
    const Work work = memory.work().get(n);
    if (work.head < 0) return;
    RowSpan spans[2];
    load_spans(spans, p.walk, p.classes, work.head % p.classes.count,
               lists ? p.walk.table_of(work.head * p.group) : 0, p.kv_rows,
               work.tile * Tile::kv_rows + key_in_tile);
    float dv[D / 2], s[M / 2];
    std::uint32_t probabilities[M / 4];
    int flags = Visit::last;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dv[i] = 0.0f;

    // S of the tile at `at`, without waiting for it.
    const auto issue_s = [&] {
      wait(memory.q_full(at.stage), at.parity);
      flags = uniform(Visit::flags(memory.visit(at.stage)));
      products_begin();
      issue_scores<T, Tile, M>(s, k, q + at.stage * Memory::q_bytes);
    };
    const auto take_probabilities = [&] {
      pin(s);
      take_powers<M>(s, p.factor,
                     [&](int j) { return load_shared_pair(lse2_place + at.stage * (M * 4) + 32 * j); });
      if ((flags & Visit::partial) != 0) {
        const int tile = uniform(Visit::tile(memory.visit(at.stage)));
        clear_outside<M>(s, spans, tile * M + own_column);
        if (lists && (flags & Visit::bits) != 0) {
          for_each_missing_bit<M, true>(
              p.walk.bits,
              p.walk.table_of(work.head * p.group + Visit::head_in_group(flags)) * p.walk.bits.words_of_list,
              work.tile * Tile::kv_rows + key_in_tile, p.kv_rows, tile, own_column,
              [&](int where) { s[where] = 0.0f; });
        }
      }
      release(memory.q_empty(at.stage));
      exchange.put(s);
#pragma unroll
      for (int i = 0; i < M / 4; ++i) probabilities[i] = gpu::pack<T>(s[2 * i], s[2 * i + 1]);
    };
    const auto issue_dv = [&] {
      wait(memory.d_out_full(at.stage), at.parity);
      products_begin();
      issue_gradient<T, M, D>(dv, probabilities, d_out + at.stage * Memory::q_bytes);
      products_commit();
    };
    if (work.runs > 0) {
      issue_s();
      products_wait<0>();
      take_probabilities();
      while ((flags & Visit::last) == 0) {
        issue_dv();
        const int stage = at.stage;
        at.advance();
        issue_s();
        products_wait<1>();
        pin(dv);
        pin(probabilities);
        release(memory.d_out_empty(stage));
        products_wait<0>();
        take_probabilities();
      }
      issue_dv();
      products_wait<0>();
      pin(dv);
      pin(probabilities);
      release(memory.d_out_empty(at.stage));
      at.advance();
    }
    release(memory.kv_empty());
    const auto [batch, kv_head, residue] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    leave_gradient<D>(p.dv, p.fresh_dkv, p.dv_factor, dv, batch, kv_head, p.classes, residue, p.kv_rows,
                      work.tile * Tile::kv_rows + key_in_tile, own_column);
  }
}

/// The warpgroup of dP, dS and dK.
template <class T, class Tile>
__device__ __forceinline__ void compute_key_gradient(const BackwardParameters& p,
                                                     const BackwardMemory<Tile>& memory) {
  using Memory = BackwardMemory<Tile>;
  constexpr int D = Tile::head_dim, M = Tile::q_rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, own_column = lane % 4 * 2;
  const int key_in_tile = static_cast<int>(threadIdx.x) % warpgroup / 32 * 16 + lane / 4;
  const Descriptor v = Descriptor::of(memory.v(), Memory::kv_panel);
  const Descriptor q = Descriptor::of(memory.q(0), Memory::q_panel),
                   d_out = Descriptor::of(memory.d_out(0), Memory::q_panel);
  const int d_place = static_cast<int>(memory.d(0)) + own_column * 4;
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  ProbabilityExchange<Tile> exchange(memory);
  RingPosition<Tile::stages> at;
  for (int n = 0;; ++n) {
    const Work work = memory.work().get(n);
    if (work.head < 0) return;
    float dk[D / 2], dp[M / 2], probabilities[M / 2];
    std::uint32_t ds[M / 4];
    int flags = Visit::last;
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = 0.0f;

    const auto issue_dp = [&] {
      wait(memory.d_out_full(at.stage), at.parity);
      products_begin();
      issue_scores<T, Tile, M>(dp, v, d_out + at.stage * Memory::q_bytes);
    };
    const auto take_score_gradients = [&] {
      pin(dp);
      flags = uniform(Visit::flags(memory.visit(at.stage)));  // P comes after it
      score_gradients<T, M>(ds, probabilities, dp,
                            [&](int j) { return load_shared_pair(d_place + at.stage * (M * 4) + 32 * j); });
      release(memory.d_out_empty(at.stage));
    };
    const auto issue_dk = [&] {
      wait(memory.q_full(at.stage), at.parity);
      products_begin();
      issue_gradient<T, M, D>(dk, ds, q + at.stage * Memory::q_bytes);
      products_commit();
    };
    if (work.runs > 0) {
      issue_dp();
      exchange.get(probabilities);
      products_wait<0>();
      take_score_gradients();
      while ((flags & Visit::last) == 0) {
        issue_dk();
        const int stage = at.stage;
        at.advance();
        issue_dp();
        products_wait<1>();
        pin(dk);
        pin(ds);
        release(memory.q_empty(stage));
        exchange.get(probabilities);
        products_wait<0>();
        take_score_gradients();
      }
      issue_dk();
      products_wait<0>();
      pin(dk);
      pin(ds);
      release(memory.q_empty(at.stage));
      at.advance();
    }
    release(memory.kv_empty());
    const auto [batch, kv_head, residue] = HeadAndClass::of(work.head, p.kv_heads, p.classes.count);
    leave_gradient<D>(p.dk, p.fresh_dkv, p.dk_factor, dk, batch, kv_head, p.classes, residue, p.kv_rows,
                      work.tile * Tile::kv_rows + key_in_tile, own_column);
  }
}

template <class T, class Tile, bool lists>
__global__ void __launch_bounds__(Tile::threads, 1)
    key_gradient_kernel(const __grid_constant__ BackwardParameters p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const BackwardMemory<Tile> memory(dynamic);
  if (threadIdx.x == 0) {
    for (const RowMaps* maps : {&p.q, &p.d_out, &p.k, &p.v}) maps->prefetch();
    memory.init();
  }
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup);
  if (group == 0) {
    lower_registers<Tile::producer_registers>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) {
      copy_backward<Tile, lists, Copies::q_and_k>(p, memory);
    } else if (warp == 1) {
      copy_backward<Tile, lists, Copies::d_out_and_v>(p, memory);
    }
  } else {
    raise_registers<Tile::consumer_registers>();
    if constexpr (Tile::alternates) {
      compute_alternating<T, Tile>(p, memory, group - 1);
    } else if (group == 1) {
      compute_value_gradient<T, Tile, lists>(p, memory);
    } else {
      compute_key_gradient<T, Tile>(p, memory);
    }
  }
}

}  // namespace annulus::attention::hopper
