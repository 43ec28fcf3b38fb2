#pragma once

#include "attention/kernels/hopper/backward/producer.hpp"
#include "attention/kernels/hopper/backward/products.hpp"

/// dK and dV alone, for fine block lists up to head dimension 128. Two warpgroups have the same keys, and
/// each computes every other visit, from S to dK and dV: while one takes exponentials the tensor cores work
/// for the other, and nothing but the sums passes from one to the other, once, at the end.
namespace annulus::attention::hopper {

/// Adds the sums of both warpgroups: each gives one of its two gradients and adds what it is given to the
/// other one. Which of them computed which visit does not change a bit, as a + b = b + a. Both meet before
/// and behind giving, at the same places of the code.
template <class Tile>
class SumExchange {
 public:
  __device__ __forceinline__ SumExchange(const BackwardSharedMemory<Tile>& memory, int group)
      : given_(memory.sums(group) + threadIdx.x % warpgroup * 16),
        taken_(memory.sums(1 - group) + threadIdx.x % warpgroup * 16) {}

  /// What was given before this has arrived, and what was taken before has been read.
  __device__ __forceinline__ static void meet() { bar_sync(NamedBarrier::sum_exchange, 2 * warpgroup); }
  template <int count>
  __device__ __forceinline__ void give(const float (&sums)[count]) const {
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
      store_shared(given_ + j * warpgroup * 16,
                   make_int4(__float_as_int(sums[4 * j]), __float_as_int(sums[4 * j + 1]),
                             __float_as_int(sums[4 * j + 2]), __float_as_int(sums[4 * j + 3])));
    }
  }
  template <int count>
  __device__ __forceinline__ void add_to(float (&sums)[count]) const {
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
      const int4 four = load_shared_int4(taken_ + j * warpgroup * 16);
      sums[4 * j] += __int_as_float(four.x);
      sums[4 * j + 1] += __int_as_float(four.y);
      sums[4 * j + 2] += __int_as_float(four.z);
      sums[4 * j + 3] += __int_as_float(four.w);
    }
  }

 private:
  std::uint32_t given_, taken_;
};

/// A warpgroup. `group`: 0 or 1.
// Longer than other functions: S of the next visit is issued before dV and dK of this one have ended, so that
// two visits share the accumulators, the packed P and dS and the position in the pipeline. Nobody has
// measured whether cutting it would cost registers.
template <class T, class Tile>
__device__ __forceinline__ void alternating_consumer(const BackwardParameters& p,
                                                     const BackwardSharedMemory<Tile>& memory, int group) {
  using Memory = BackwardSharedMemory<Tile>;
  constexpr int D = Tile::head_dim, M = Tile::q_rows;
  static_assert(!Tile::capped && Tile::consumers == 2 && Tile::stages % 2 == 0,
                "every other stage is a warpgroup's own");
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // What few places ask for is computed there again: registers for it would be taken from the products.
  const auto thread = [] { return recomputed(static_cast<int>(threadIdx.x)); };
  const auto own_column = [&] { return thread() % 4 * 2; };
  const auto key_in_tile = [&] {
    const int here = thread();
    return here % warpgroup / 32 * 16 + here % 32 / 4;
  };
  const MatrixDescriptor k = MatrixDescriptor::of(memory.k(), Memory::kv_atom),
                         v = MatrixDescriptor::of(memory.v(), Memory::kv_atom);
  const MatrixDescriptor q = MatrixDescriptor::of(memory.q(0), Memory::q_atom),
                         d_out = MatrixDescriptor::of(memory.d_out(0), Memory::q_atom);
  const int lse2_address = static_cast<int>(memory.lse2(0)) + own_column() * 4;
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };

  const SumExchange<Tile> exchange(memory, group);
  PipelineState<Tile::stages> at;  // of this warpgroup's next visit
  if (group == 1) at.advance();
  int first_group = 0;  // who has the first visit of the next work
  int keys_parity = 0;
  for (int n = 0;; ++n) {
    const WorkTile work = memory.work().get(n);
    if (work.head < 0) return;
    float dk[D / 2], dv[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0.0f;

    // Block lists have a run for each tile, and the heads of a list visit it one after the other.
    const int visits = work.runs * p.tile_tables.heads_of_list;
    int left = (visits + (group == first_group ? 1 : 0)) / 2;
    first_group = (first_group + visits) % 2;
    if (left > 0) {
      float s[M / 2], dp[M / 2];
      std::uint32_t probabilities[M / 4], ds[M / 4];
      int flags = 0;
      const auto issue_s = [&] {  // without waiting for it
        wait(memory.q_full(at.stage), at.parity);
        flags = uniform(TileInfo::flags(memory.tile_info(at.stage)));
        wgmma_fence();
        issue_scores<T, Tile, M>(s, k, q + at.stage * Memory::q_bytes);
      };
      const auto end_of_gradients = [&](int stage) {
        fence_operand(dv);
        fence_operand(dk);
        fence_operand(probabilities);
        fence_operand(ds);
        release(memory.d_out_empty(stage));
        release(memory.q_empty(stage));
      };
      wait(memory.k_full(), keys_parity);
      issue_s();
      wait(memory.v_full(), keys_parity);
      for (;;) {
        const int stage = at.stage;
        const MatrixDescriptor q_stage = q + stage * Memory::q_bytes,
                               d_out_stage = d_out + stage * Memory::q_bytes;
        // Loads from shared memory take long while products read it: these are under way before.
        const int lse2_start = lse2_address + stage * (M * 4);
        float2 lse2[M / 8];
#pragma unroll
        for (int j = 0; j < M / 8; ++j) lse2[j] = load_shared_pair(lse2_start + 32 * j);
        wait(memory.d_out_full(stage), at.parity);
        wgmma_fence();
        issue_scores<T, Tile, M>(dp, v, d_out_stage);
        wgmma_wait<1>();
        fence_operand(s);
        take_powers<M>(s, p.factor, [&](int j) { return lse2[j]; });
        if ((flags & TileInfo::partial) != 0) {
          const int tile = uniform(TileInfo::tile(memory.tile_info(stage)));
          RowSpan spans[2];  // loaded here: they would take registers from the products
          load_spans(spans, p.tile_tables, p.classes, recomputed(work.head) % p.classes.count,
                     p.tile_tables.table_of(recomputed(work.head) * p.group), p.kv_rows,
                     recomputed(work.tile) * Tile::kv_rows + key_in_tile());
          for_each_outside<M>(spans, tile * M + own_column(), [&](int where) { s[where] = 0.0f; });
          if ((flags & TileInfo::bits) != 0) {
            for_each_missing_bit<M, true>(
                p.tile_tables.bits,
                p.tile_tables.table_of(work.head * p.group + TileInfo::head_in_group(flags)) *
                    p.tile_tables.bits.words_of_list,
                recomputed(work.tile) * Tile::kv_rows + key_in_tile(), p.kv_rows, tile, own_column(),
                [&](int where) { s[where] = 0.0f; });
          }
        }
#pragma unroll
        for (int i = 0; i < M / 4; ++i) probabilities[i] = gpu::pack<T>(s[2 * i], s[2 * i + 1]);
        const int d_start = lse2_start + (Memory::d_offset - Memory::lse2_offset);
        wgmma_wait<0>();
        fence_operand(dp);
        score_gradients<T, M>(ds, s, dp, [&](int j) { return load_shared_pair(d_start + 32 * j); });
        wgmma_fence();
        issue_gradient<T, M, D>(dv, probabilities, d_out_stage);
        wgmma_commit();
        wgmma_fence();
        issue_gradient<T, M, D>(dk, ds, q_stage);
        wgmma_commit();
        at.advance();
        at.advance();
        if (--left == 0) {
          release(memory.kv_empty());
          wgmma_wait<0>();
          end_of_gradients(stage);
          break;
        }
        issue_s();
        wgmma_wait<1>();
        end_of_gradients(stage);
      }
    } else {
      release(memory.kv_empty());
    }

    const auto [batch, kv_head, dilation_class] =
        HeadAndClass::of(recomputed(work.head), p.kv_heads, p.classes.count);
    const int own_key = recomputed(work.tile) * Tile::kv_rows + key_in_tile();
    const auto leave = [&](const gpu::Rows<float>& to, float factor, const float(&gradient)[D / 2]) {
      leave_gradient<D, Tile::clipped>(to, p.fresh_dkv, factor, gradient, batch, kv_head, p.classes,
                                       dilation_class, p.kv_rows, p.columns, own_key, own_column());
    };
    if (visits > 0) {
      keys_parity ^= 1;
      exchange.meet();
      group == 0 ? exchange.give(dv) : exchange.give(dk);
      exchange.meet();
      group == 0 ? exchange.add_to(dk) : exchange.add_to(dv);
    }
    if (group == 0) {
      leave(p.dk, p.dk_factor, dk);
    } else {
      leave(p.dv, p.dv_factor, dv);
    }
  }
}

}  // namespace annulus::attention::hopper
