#pragma once

#include <type_traits>

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/hopper/ptx/pipeline_state.hpp"
#include "attention/kernels/hopper/ptx/tensor_map.hpp"
#include "attention/kernels/hopper/schedule/dilation_classes.hpp"
#include "attention/kernels/hopper/schedule/tile_scheduler.hpp"
#include "attention/kernels/hopper/tile/element_mask.hpp"
#include "attention/kernels/hopper/tile/shapes.hpp"
#include "attention/kernels/hopper/tile/softmax.hpp"

/// The forward pass: O and LSE of a block of keys, merged into what earlier blocks left (FlashAttention-2,
/// Algorithm 1, started from a running result; the ring's merge, BurstEngine eq. 5, is that start).
namespace annulus::attention::hopper {

struct ForwardParameters {
  RowMaps q, k, v;  ///< boxes of packed_rows (q) or box_rows (k, v)
  gpu::Rows<float> out, lse;
  gpu::Rows<std::uint16_t> finished;  ///< elements of T; none: the result stays in `out`
  TileTables tile_tables;
  TileOrder order;
  int* tile_counter;  ///< 0 at the start
  bool fresh;         ///< O and LSE hold nothing yet and are not read
  int heads, kv_heads, q_rows;
  DilationClasses classes;
  float scale, inverse_scale;
  float factor;  ///< scale · log2(e), an operand from constant memory: 1 to 2 % faster than one in a register
  int columns;   ///< of a row in memory
  float tangent_factor;  ///< of capped tiles: scale / soft_cap, and soft_cap stands for the scale above
  const void* sinks;     ///< of tiles with sinks: (heads) of T
};

/// Shared memory: stages of Q, K and V, barriers, what to work on.
template <class Tile>
struct ForwardSharedMemory {
  static constexpr int q_atom = Tile::rows_in_memory * atom_row_bytes,
                       kv_atom = Tile::kv_rows * atom_row_bytes;
  static constexpr int q_bytes = q_atom * Tile::atoms, k_bytes = kv_atom * Tile::atoms,
                       v_bytes = kv_atom * Tile::v_atoms;
  static constexpr int k_offset = Tile::q_stages * q_bytes, v_offset = k_offset + Tile::stages * k_bytes;
  static constexpr int work_offset = v_offset + Tile::stages * v_bytes;
  static constexpr int tiles_offset = work_offset + WorkTileBuffer::bytes;
  static constexpr int barrier_offset =
      tiles_offset + (Tile::kv_boxes > 1 ? Tile::stages * TileGroup<Tile::kv_boxes>::bytes : 0);
  static constexpr int bytes = barrier_offset + 8 * (2 * Tile::q_stages + 4 * Tile::stages);
  static_assert(Tile::blocks_of_sm * (bytes + 1024) <= 228 * 1024);

  std::uint32_t start;
  /// `dynamic`: aligned to 1024 bytes.
  __device__ __forceinline__ explicit ForwardSharedMemory(const void* dynamic)
      : start(gpu::shared_address(dynamic)) {}

  __device__ __forceinline__ std::uint32_t k(int stage) const { return start + k_offset + stage * k_bytes; }
  __device__ __forceinline__ std::uint32_t v(int stage) const { return start + v_offset + stage * v_bytes; }
  __device__ __forceinline__ std::uint32_t q(int stage) const { return start + stage * q_bytes; }
  __device__ __forceinline__ std::uint32_t q_full(int stage) const { return barrier(stage); }
  __device__ __forceinline__ std::uint32_t q_empty(int stage) const {
    return barrier(Tile::q_stages + stage);
  }
  __device__ __forceinline__ std::uint32_t k_full(int stage) const { return kv_barrier(0, stage); }
  __device__ __forceinline__ std::uint32_t k_empty(int stage) const { return kv_barrier(1, stage); }
  __device__ __forceinline__ std::uint32_t v_full(int stage) const { return kv_barrier(2, stage); }
  __device__ __forceinline__ std::uint32_t v_empty(int stage) const { return kv_barrier(3, stage); }
  __device__ __forceinline__ WorkTileBuffer work() const { return WorkTileBuffer(start + work_offset); }
  /// Which tiles the keys of a stage are, where they are several.
  __device__ __forceinline__ std::uint32_t tiles(int stage) const {
    return start + tiles_offset + stage * TileGroup<Tile::kv_boxes>::bytes;
  }

  __device__ void init() const {
    constexpr int readers = 4 * Tile::consumers;  // one arrival a warp
    for (int stage = 0; stage < Tile::q_stages; ++stage) {
      barrier_init(q_full(stage), 1);
      barrier_init(q_empty(stage), readers + 1);  // and the producer thread
    }
    for (int stage = 0; stage < Tile::stages; ++stage) {
      barrier_init(k_full(stage), 1);
      barrier_init(v_full(stage), 1);
      barrier_init(k_empty(stage), readers);
      barrier_init(v_empty(stage), readers);
    }
    work().init(readers);
    barrier_init_fence();
  }

 private:
  __device__ __forceinline__ std::uint32_t barrier(int i) const { return start + barrier_offset + 8 * i; }
  __device__ __forceinline__ std::uint32_t kv_barrier(int kind, int stage) const {
    return barrier(2 * Tile::q_stages + kind * Tile::stages + stage);
  }
};

/// Packed tiles have no dilation: what is constant takes no divisions.
template <class Tile>
__device__ __forceinline__ DilationClasses classes_of(const ForwardParameters& p) {
  return Tile::packed > 1 ? DilationClasses{} : p.classes;
}

/// The producer thread: K, Q, and then V one tile behind K, in the order of use.
template <class Tile>
__device__ __forceinline__ void forward_producer(const ForwardParameters& p,
                                                 const ForwardSharedMemory<Tile>& memory) {
  using Memory = ForwardSharedMemory<Tile>;
  using Tiles = TileGroup<Tile::kv_boxes>;
  TileScheduler queue(p.order, p.tile_tables, Tile::heads, 1, p.tile_counter,
                      Tile::sinks || p.fresh || p.finished.data != nullptr);
  PipelineState<Tile::q_stages> q_at;
  PipelineState<Tile::stages> k_at, v_at;
  WorkTile work = queue.next();
  memory.work().put(0, work);
  const DilationClasses classes = classes_of<Tile>(p);
  for (int n = 0; work.head >= 0; ++n) {
    const auto [batch, heads, dilation_class] =
        HeadAndClass::of(work.head, p.heads / Tile::heads, classes.count);
    const int head = heads * Tile::heads;
    const int kv_head = head / (p.heads / p.kv_heads), kv_class = classes.keys_of(dilation_class);
    const ClassMap q = p.q.of_class(dilation_class), k = p.k.of_class(kv_class), v = p.v.of_class(kv_class);
    const auto load = [&](int atoms, const ClassMap& map, std::uint32_t to, std::uint32_t full,
                          std::uint32_t empty, PipelineState<Tile::stages>& at, const Tiles& tiles) {
      wait(empty, at.parity ^ 1);
      if constexpr (Tile::kv_boxes > 1) {
        if (&map == &k) tiles.put(memory.tiles(at.stage));
      }
      arrive_expecting(full, atoms * Memory::kv_atom);
#pragma unroll
      for (int atom = 0; atom < atoms; ++atom) {
#pragma unroll
        for (int box = 0; box < Tile::kv_boxes; ++box) {
          // In the place of an absent tile stands the first one: any finite numbers will do.
          const int tile = tiles.tile[box] == Tiles::absent ? tiles.tile[0] : tiles.tile[box];
          map.load(to + atom * Memory::kv_atom + box * Tile::box_rows * atom_row_bytes, full,
                   atom * atom_columns, tile * Tile::box_rows, kv_head, batch);
        }
      }
      at.advance();
    };
    const auto load_k = [&](const Tiles& tiles) {
      load(Tile::atoms, k, memory.k(k_at.stage), memory.k_full(k_at.stage), memory.k_empty(k_at.stage), k_at,
           tiles);
    };
    const auto load_v = [&](const Tiles& tiles) {
      load(Tile::v_atoms, v, memory.v(v_at.stage), memory.v_full(v_at.stage), memory.v_empty(v_at.stage),
           v_at, tiles);
    };

    const int q_stage = q_at.stage;
    wait(memory.q_empty(q_stage), q_at.parity ^ 1);
    // Consumer warps are done at once with work that has no tiles. This thread takes part in the phase, so
    // that it cannot end before this thread has seen the end of the one before.
    arrive(memory.q_empty(q_stage));
    q_at.advance();
    TileIterator<false> cursor(p.tile_tables.runs + work.first_run, work.runs);
    Tiles tiles;
    if (!tiles.take(cursor)) {
      work = queue.next();
      memory.work().put(n + 1, work);
      continue;
    }
    load_k(tiles);
    arrive_expecting(memory.q_full(q_stage), Memory::q_bytes);
#pragma unroll
    for (int atom = 0; atom < Tile::atoms; ++atom) {
#pragma unroll
      for (int box = 0; box < Tile::consumers * Tile::packed; ++box) {
        const int group = box / Tile::packed;
        q.load(memory.q(q_stage) + atom * Memory::q_atom + box * Tile::packed_rows * atom_row_bytes,
               memory.q_full(q_stage), atom * atom_columns, work.tile * Tile::q_rows + Tile::first_row(group),
               head + Tile::head_of(group) + box % Tile::packed, batch);
      }
    }
    Tiles before = tiles;
    while (tiles.take(cursor)) {
      load_k(tiles);
      load_v(before);
      before = tiles;
    }
    // The next work is taken while the last V still waits for its buffer, and no sooner: whoever takes it
    // early keeps it from those who are done.
    work = queue.next();
    memory.work().put(n + 1, work);
    load_v(before);
  }
}

/// A warpgroup that computes 64 queries: Q in shared memory, S, P and O in registers. `lists_of_heads`:
/// heads have block lists of their own; the code for that costs 0.7 % where it is not needed.
// Longer than other functions: over the whole loop its steps share the registers of S, P and O, the row
// spans, the mask's bits and the positions in the pipelines, and a function cut out of it would take all of
// these as arguments. Nobody has measured whether that would cost registers.
template <class T, class Tile, bool lists_of_heads>
__device__ __forceinline__ void forward_consumer(const ForwardParameters& p,
                                                 const ForwardSharedMemory<Tile>& memory) {
  using Memory = ForwardSharedMemory<Tile>;
  constexpr int D = Tile::head_dim, V = Tile::v_dim, N = Tile::kv_rows, box_rows = Tile::box_rows;
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup - 1);
  const int lane = static_cast<int>(threadIdx.x) % 32, kept_column = lane % 4 * 2;
  // Of the rows of a consumer, 16 a warp.
  const auto row_of = [group](int thread_of_group) {
    return Tile::first_row(group) + thread_of_group / 32 * 16 % Tile::packed_rows + thread_of_group % 32 / 4;
  };
  const int kept_row = row_of(static_cast<int>(threadIdx.x) % warpgroup);

  // At head dimension 256, and with four consumers, the products take all registers: what few places ask for
  // is computed there again.
  constexpr bool kept = Tile::v_dim <= 128 && Tile::packed == 1;
  const auto own_column = [&] {
    return kept ? kept_column : recomputed(static_cast<int>(threadIdx.x)) % 4 * 2;
  };
  const auto row_in_tile = [&] {
    if constexpr (kept) return kept_row;
    return row_of(recomputed(static_cast<int>(threadIdx.x)) % warpgroup);
  };

  const MatrixDescriptor q = MatrixDescriptor::of(memory.q(0) + group * 64 * atom_row_bytes, Memory::q_atom);
  const MatrixDescriptor k = MatrixDescriptor::of(memory.k(0), Memory::kv_atom),
                         v = MatrixDescriptor::of(memory.v(0), Memory::kv_atom);

  Softmax<T, N, V> state;
  float(&s)[N / 2] = state.scores;
  float(&o)[V / 2] = state.out;
  std::uint32_t probabilities[N / 4];
  WorkTile work{};
  RowSpan spans[2];

  PipelineState<Tile::q_stages> q_at;
  const auto issue_scores = [&](int stage) {  // S = Q · Kᵀ
    const MatrixDescriptor q_stage = q + q_at.stage * Memory::q_bytes, k_stage = k + stage * Memory::k_bytes;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      Wgmma<T, N>::template shared<false, false>(s, q_stage + (step / 4 * Memory::q_atom + step % 4 * 32),
                                                 k_stage + (step / 4 * Memory::kv_atom + step % 4 * 32),
                                                 step > 0);
    }
    wgmma_commit();
  };
  const auto issue_output = [&](int stage) {  // O += P · V
    const MatrixDescriptor v_stage = v + stage * Memory::v_bytes;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < N / 16; ++step) {
      Wgmma<T, V>::template registers<true>(o, probabilities + 4 * step, v_stage + step * 16 * atom_row_bytes,
                                            true);
    }
    wgmma_commit();
  };
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };
  const auto table = [&](int head) { return p.tile_tables.table_of(head * Tile::heads); };
  // Nearly every tile of listed keys has bits, so they are loaded before its scores are computed.
  constexpr bool bits_ahead = lists_of_heads && Tile::kv_boxes == 1 && Tile::consumers == 2;
  TileBits<box_rows, lists_of_heads> tile_bits;
  const auto load_bits = [&](int tile) {
    const std::int64_t first_word =
        lists_of_heads ? table(recomputed(work.head)) * p.tile_tables.bits.words_of_list : 0;
    tile_bits.load(p.tile_tables.bits, first_word, recomputed(work.tile) * Tile::q_rows + row_in_tile(),
                   p.q_rows, tile);
  };
  const auto load_own_spans = [&] {
    const DilationClasses classes = classes_of<Tile>(p);
    load_spans(spans, p.tile_tables, classes, work.head % classes.count,
               lists_of_heads ? table(work.head) : 0, p.q_rows, work.tile * Tile::q_rows + row_in_tile());
  };
  // Masks the scores of the box-th tile at once. `how`: of its run.
  const auto mask = [&](auto box, int tile, int how) {
    constexpr int first = box() * (box_rows / 2);
    if constexpr (Tile::packed > 1) load_own_spans();  // four consumers have no registers to keep them
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int begin = spans[i].begin - tile * box_rows - own_column(),
                end = spans[i].end - tile * box_rows - own_column();
#pragma unroll
      for (int j = 0; j < box_rows / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * j + e < begin || 8 * j + e >= end)
            s[first + 4 * j + 2 * i + e] = -std::numeric_limits<float>::infinity();
        }
      }
    }
    if (Tile::packed > 1) return;  // windows without block lists
    if (lists_of_heads ? !TileRun::bits(how) : p.tile_tables.bits.words == nullptr) return;
    if constexpr (!bits_ahead) load_bits(tile);
    tile_bits.for_each_missing(p.tile_tables.bits, tile, own_column(),
                               [&](int at) { s[first + at] = -std::numeric_limits<float>::infinity(); });
  };
  const auto pack_probabilities = [&] {
#pragma unroll
    for (int j = 0; j < N / 4; ++j) probabilities[j] = gpu::pack<T>(s[2 * j], s[2 * j + 1]);
  };
  // Turns: while one warpgroup does its softmax the tensor cores work for another. Loops of three tiles are
  // too short for that: without turns they take 0.96 of the time.
  constexpr bool takes_turns = Tile::consumers > 1 && Tile::packed == 1;
  const auto wait_for_tensor_cores = [&] {
    if constexpr (takes_turns) bar_sync(NamedBarrier::tensor_cores, 2 * warpgroup, group);
  };
  const auto pass_tensor_cores = [&] {
    if constexpr (takes_turns)
      bar_arrive(NamedBarrier::tensor_cores, 2 * warpgroup, (group + 1) % Tile::consumers);
  };

  if (group == Tile::consumers - 1) pass_tensor_cores();  // the first turn is warpgroup 0's
  PipelineState<Tile::stages> k_at, v_at;
  int q_parities = 0;  // a bit for each buffer: work without tiles fills none
  for (int n = 0;; ++n) {
    work = memory.work().get(n);
    if (work.head < 0) return;
    if constexpr (Tile::packed == 1) load_own_spans();
    // Calls action with what takes the rows of this dilation class, and where this tile is among them.
    const auto with_rows = [&](const auto& action) {
      const DilationClasses classes = classes_of<Tile>(p);
      const auto [batch, heads, dilation_class] =
          HeadAndClass::of(recomputed(work.head), p.heads / Tile::heads, classes.count);
      const auto of_class = [&, dilation_class = dilation_class](const auto& rows) {
        return rows.every(classes.count, dilation_class);
      };
      const int warp = Tile::packed == 1 ? 0 : static_cast<int>(threadIdx.x) % warpgroup / 32;
      action(of_class, batch, heads * Tile::heads + Tile::head_of(group) + warp,
             recomputed(work.tile) * Tile::q_rows + row_in_tile(),
             static_cast<int>(classes.rows(p.q_rows, dilation_class)));
    };
    const auto finish = [&](bool with_lse) {
      with_rows([&](const auto& of_class, int batch, int head, int row, int rows) {
        const gpu::Rows<float> lse = with_lse ? of_class(p.lse) : gpu::Rows<float>{};
        const FinishedRows to{of_class(p.out), lse, of_class(p.finished)};
        const float sink = Tile::sinks ? static_cast<float>(static_cast<const T*>(p.sinks)[head]) : 0.0f;
        state.template finish<Tile::clipped, Tile::sinks>(to, batch, head, row, rows, p.columns, p.scale,
                                                          sink);
      });
    };
    const auto start_out = [&] {
      with_rows([&](const auto& of_class, int batch, int head, int row, int) {
        state.template start_out<Tile::clipped>(of_class(p.out), batch, head, row, p.columns);
      });
    };
    with_rows([&](const auto& of_class, int batch, int head, int row, int rows) {
      state.start_rows(of_class(p.lse), batch, head, row, p.fresh ? 0 : rows, p.inverse_scale);
    });
    TileIterator<true> cursor(p.tile_tables.runs + work.first_run, Tile::kv_boxes == 1 ? work.runs : 0);
    TileGroup<Tile::kv_boxes> tiles;
    const auto mask_tiles = [&] {
      if constexpr (Tile::kv_boxes == 1) {
        mask(std::integral_constant<int, 0>{}, cursor.tile(), cursor.how());
      } else {
        if (TileRun::partial(tiles.how[0]))
          mask(std::integral_constant<int, 0>{}, tiles.tile[0], tiles.how[0]);
        if (TileRun::partial(tiles.how[1]))
          mask(std::integral_constant<int, 1>{}, tiles.tile[1], tiles.how[1]);
      }
    };
    const auto starts_partial = [&] { return Tile::kv_boxes == 1 ? cursor.partial() : tiles.partial(); };
    if (work.runs == 0) {
      release(memory.q_empty(q_at.stage));
      q_at.advance();
      start_out();
      state.keep();
      finish(Tile::sinks || p.fresh);  // a running LSE to which nothing is added keeps its bits
      continue;
    }
    if constexpr (Tile::kv_boxes == 1) cursor.next_in_run();
    if constexpr (bits_ahead) {
      if (cursor.bits()) load_bits(cursor.tile());
    }
    wait(memory.q_full(q_at.stage), q_parities >> q_at.stage & 1);
    q_parities ^= 1 << q_at.stage;
    wait(memory.k_full(k_at.stage), k_at.parity);
    if constexpr (Tile::kv_boxes > 1) tiles.get(memory.tiles(k_at.stage));
    issue_scores(k_at.stage);
    start_out();  // arrives while the first scores are computed
    wgmma_wait<0>();
    fence_operand(s);
    release(memory.k_empty(k_at.stage));
    k_at.advance();
    if constexpr (Tile::capped) state.take_tangents(p.tangent_factor);
    if (starts_partial()) mask_tiles();
    state.exponentiate(p.factor);
    pack_probabilities();
    state.rescale(1.0f);

    // P·V lags one tile behind, so that a turn at the tensor cores is two products long: longer than a
    // softmax, which the other warpgroups' products hide.
    const auto step = [&](bool partial) {
      if constexpr (bits_ahead) {
        if (partial && cursor.bits()) load_bits(cursor.tile());
      }
      wait(memory.k_full(k_at.stage), k_at.parity);
      wait_for_tensor_cores();
      issue_scores(k_at.stage);
      wait(memory.v_full(v_at.stage), v_at.parity);
      issue_output(v_at.stage);
      pass_tensor_cores();
      wgmma_wait<1>();
      fence_operand(s);
      release(memory.k_empty(k_at.stage));
      k_at.advance();
      if constexpr (Tile::capped) state.take_tangents(p.tangent_factor);
      if (partial) mask_tiles();
      state.exponentiate(p.factor);
      fence_operand(s);
      wgmma_wait<0>();
      fence_operand(o);
      fence_operand(s);
      fence_operand(probabilities);
      release(memory.v_empty(v_at.stage));
      v_at.advance();
      pack_probabilities();
      state.rescale();
    };
    // A loop for each kind of tile, because a branch inside would cut the compiler's schedule of a step.
    if constexpr (Tile::kv_boxes == 1) {
      do {
        if (cursor.partial()) {
          while (cursor.next_in_run()) step(true);
        } else {
          while (cursor.next_in_run()) step(false);
        }
      } while (cursor.next_run());
    } else {
      while (!tiles.last) {
        wait(memory.k_full(k_at.stage), k_at.parity);
        tiles.get(memory.tiles(k_at.stage));
        if (tiles.partial()) {
          step(true);
        } else {
          step(false);
        }
      }
    }
    release(memory.q_empty(q_at.stage));
    q_at.advance();
    wait(memory.v_full(v_at.stage), v_at.parity);
    issue_output(v_at.stage);
    wgmma_wait<0>();
    fence_operand(o);
    release(memory.v_empty(v_at.stage));
    v_at.advance();
    finish(true);
  }
}

template <class T, class Tile, bool lists_of_heads>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks_of_sm)
    forward_kernel(const __grid_constant__ ForwardParameters p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const ForwardSharedMemory<Tile> memory(dynamic);
  start_block(memory, {&p.q, &p.k, &p.v});
  if (threadIdx.x < warpgroup) {
    setmaxnreg_dec<Tile::producer_registers>();
    if (threadIdx.x == 0) forward_producer<Tile>(p, memory);
  } else {
    setmaxnreg_inc<Tile::consumer_registers>();
    forward_consumer<T, Tile, lists_of_heads>(p, memory);
  }
}

}  // namespace annulus::attention::hopper
