#pragma once

#include <type_traits>

#include "attention/gpu/problem.hpp"
#include "attention/hopper/element_mask.hpp"
#include "attention/hopper/residue_classes.hpp"
#include "attention/hopper/ring_position.hpp"
#include "attention/hopper/softmax.hpp"
#include "attention/hopper/tensor_map.hpp"
#include "attention/hopper/tuning.hpp"
#include "attention/hopper/work.hpp"

/// The forward pass: O and LSE of a block of keys, merged into what earlier blocks left (FlashAttention-2,
/// Algorithm 1, started from a running result; the ring's merge, BurstEngine eq. 5, is that start).
namespace annulus::attention::hopper {

struct ForwardParameters {
  RowMaps q, k, v;  ///< boxes of 64 rows (q) or box_rows (k, v)
  gpu::Rows<float> out, lse;
  gpu::Rows<std::uint16_t> finished;  ///< elements of T; none: the result stays in `out`
  WalkTables walk;
  WorkOrder order;
  int* tickets;  ///< 0 at the start
  bool fresh;    ///< O and LSE hold nothing yet and are not read
  int heads, kv_heads, q_rows;
  ResidueClasses classes;
  float scale, inverse_scale;
  float factor;  ///< scale · log2(e), an operand from constant memory: 1 to 2 % faster than one in a register
};

/// Shared memory: Q, stages of K and V, barriers, what to work on.
template <class Tile>
struct ForwardMemory {
  static constexpr int q_panel = Tile::rows_in_memory * panel_row_bytes,
                       kv_panel = Tile::kv_rows * panel_row_bytes;
  static constexpr int q_bytes = q_panel * Tile::panels, kv_bytes = kv_panel * Tile::panels;
  static constexpr int k_offset = q_bytes, v_offset = k_offset + Tile::stages * kv_bytes;
  static constexpr int work_offset = v_offset + Tile::stages * kv_bytes;
  static constexpr int tiles_offset = work_offset + WorkPlaces::bytes;
  static constexpr int barrier_offset =
      tiles_offset + (Tile::kv_boxes > 1 ? Tile::stages * TileGroup<Tile::kv_boxes>::bytes : 0);
  static constexpr int bytes = barrier_offset + 8 * (2 + 4 * Tile::stages);
  static_assert(Tile::blocks_of_sm * (bytes + 1024) <= 228 * 1024);

  std::uint32_t start;
  /// `dynamic`: aligned to 1024 bytes.
  __device__ __forceinline__ explicit ForwardMemory(const void* dynamic)
      : start(gpu::shared_address(dynamic)) {}

  __device__ __forceinline__ std::uint32_t k(int stage) const { return start + k_offset + stage * kv_bytes; }
  __device__ __forceinline__ std::uint32_t v(int stage) const { return start + v_offset + stage * kv_bytes; }
  __device__ __forceinline__ std::uint32_t q_full() const { return barrier(0); }
  __device__ __forceinline__ std::uint32_t q_empty() const { return barrier(1); }
  __device__ __forceinline__ std::uint32_t k_full(int stage) const { return barrier(2 + stage); }
  __device__ __forceinline__ std::uint32_t k_empty(int stage) const {
    return barrier(2 + Tile::stages + stage);
  }
  __device__ __forceinline__ std::uint32_t v_full(int stage) const {
    return barrier(2 + 2 * Tile::stages + stage);
  }
  __device__ __forceinline__ std::uint32_t v_empty(int stage) const {
    return barrier(2 + 3 * Tile::stages + stage);
  }
  __device__ __forceinline__ WorkPlaces work() const { return WorkPlaces(start + work_offset); }
  /// Which tiles the keys of a stage are, where they are several.
  __device__ __forceinline__ std::uint32_t tiles(int stage) const {
    return start + tiles_offset + stage * TileGroup<Tile::kv_boxes>::bytes;
  }

  __device__ void init() const {
    constexpr int readers = 4 * Tile::consumers;  // one arrival a warp
    barrier_init(q_full(), 1);
    barrier_init(q_empty(), readers + 1);  // and the copying thread
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
};

/// The copying thread: K, Q, and then V one tile behind K, in the order of use.
template <class Tile>
__device__ __forceinline__ void copy_forward(const ForwardParameters& p, const ForwardMemory<Tile>& memory) {
  using Memory = ForwardMemory<Tile>;
  using Tiles = TileGroup<Tile::kv_boxes>;
  WorkQueue queue(p.order, p.walk, Tile::heads, 1, p.tickets, p.fresh || p.finished.data != nullptr);
  RingPosition<Tile::stages> k_at, v_at;
  Work work = queue.next();
  memory.work().put(0, work);
  for (int n = 0; work.head >= 0; ++n) {
    const auto [batch, heads, residue] = HeadAndClass::of(work.head, p.heads / Tile::heads, p.classes.count);
    const int head = heads * Tile::heads;
    const int kv_head = head / (p.heads / p.kv_heads), kv_residue = p.classes.keys_of(residue);
    const ClassMap q = p.q.of_class(residue), k = p.k.of_class(kv_residue), v = p.v.of_class(kv_residue);
    const auto load = [&](const ClassMap& map, std::uint32_t to, std::uint32_t full, std::uint32_t empty,
                          RingPosition<Tile::stages>& at, const Tiles& tiles) {
      wait(empty, at.parity ^ 1);
      if constexpr (Tile::kv_boxes > 1) {
        if (&map == &k) tiles.put(memory.tiles(at.stage));
      }
      arrive_expecting(full, Memory::kv_bytes);
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel) {
#pragma unroll
        for (int box = 0; box < Tile::kv_boxes; ++box) {
          // In the place of an absent tile stands the first one: any finite numbers will do.
          const int tile = tiles.tile[box] == Tiles::absent ? tiles.tile[0] : tiles.tile[box];
          map.load(to + panel * Memory::kv_panel + box * Tile::box_rows * panel_row_bytes, full,
                   panel * panel_columns, tile * Tile::box_rows, kv_head, batch);
        }
      }
      at.advance();
    };
    const auto load_k = [&](const Tiles& tiles) {
      load(k, memory.k(k_at.stage), memory.k_full(k_at.stage), memory.k_empty(k_at.stage), k_at, tiles);
    };
    const auto load_v = [&](const Tiles& tiles) {
      load(v, memory.v(v_at.stage), memory.v_full(v_at.stage), memory.v_empty(v_at.stage), v_at, tiles);
    };

    wait(memory.q_empty(), (n & 1) ^ 1);
    // Computing warps are done at once with work that has no tiles. This thread takes part in the phase, so
    // that it cannot end before this thread has seen the end of the one before.
    arrive(memory.q_empty());
    Cursor<false> cursor(p.walk.runs + work.first_run, work.runs);
    Tiles tiles;
    if (!tiles.take(cursor)) {
      work = queue.next();
      memory.work().put(n + 1, work);
      continue;
    }
    load_k(tiles);
    arrive_expecting(memory.q_full(), Memory::q_bytes);
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel) {
#pragma unroll
      for (int group = 0; group < Tile::consumers; ++group) {
        q.load(memory.start + panel * Memory::q_panel + group * 64 * panel_row_bytes, memory.q_full(),
               panel * panel_columns, work.tile * Tile::q_rows + Tile::first_row(group),
               head + Tile::head_of(group), batch);
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
template <class T, class Tile, bool lists_of_heads>
__device__ __forceinline__ void compute_forward(const ForwardParameters& p,
                                                const ForwardMemory<Tile>& memory) {
  using Memory = ForwardMemory<Tile>;
  constexpr int D = Tile::head_dim, N = Tile::kv_rows, box_rows = Tile::box_rows;
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup - 1);
  const int lane = static_cast<int>(threadIdx.x) % 32, kept_column = lane % 4 * 2;
  const int kept_row =
      Tile::first_row(group) + static_cast<int>(threadIdx.x) % warpgroup / 32 * 16 + lane / 4;

  // At head dimension 256 the products take all registers: what few places ask for is computed there again.
  constexpr bool kept = Tile::head_dim <= 128;
  const auto own_column = [&] { return kept ? kept_column : anew(static_cast<int>(threadIdx.x)) % 4 * 2; };
  const auto row_in_tile = [&] {
    if constexpr (kept) return kept_row;
    const int thread = anew(static_cast<int>(threadIdx.x)) % warpgroup;
    return Tile::first_row(group) + thread / 32 * 16 + thread % 32 / 4;
  };

  const Descriptor q = Descriptor::of(memory.start + group * 64 * panel_row_bytes, Memory::q_panel);
  const Descriptor k = Descriptor::of(memory.k(0), Memory::kv_panel),
                   v = Descriptor::of(memory.v(0), Memory::kv_panel);

  Softmax<T, N, D> state;
  float(&s)[N / 2] = state.scores;
  float(&o)[D / 2] = state.out;
  std::uint32_t probabilities[N / 4];
  Work work{};
  RowSpan spans[2];

  const auto issue_scores = [&](int stage) {  // S = Q · Kᵀ
    const Descriptor k_stage = k + stage * Memory::kv_bytes;
    products_begin();
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      Product<T, N>::template shared<false, false>(s, q + (step / 4 * Memory::q_panel + step % 4 * 32),
                                                   k_stage + (step / 4 * Memory::kv_panel + step % 4 * 32),
                                                   step > 0);
    }
    products_commit();
  };
  const auto issue_output = [&](int stage) {  // O += P · V
    const Descriptor v_stage = v + stage * Memory::kv_bytes;
    products_begin();
#pragma unroll
    for (int step = 0; step < N / 16; ++step) {
      Product<T, D>::template registers<true>(o, probabilities + 4 * step,
                                              v_stage + step * 16 * panel_row_bytes, true);
    }
    products_commit();
  };
  const auto release = [&](std::uint32_t barrier) {
    if (lane == 0) arrive(barrier);
  };
  const auto table = [&](int head) { return p.walk.table_of(head * Tile::heads); };
  // Of listed keys nearly every tile has bits, so they are loaded before its scores are computed.
  constexpr bool bits_ahead = lists_of_heads && Tile::kv_boxes == 1 && Tile::consumers == 2;
  TileBits<box_rows, lists_of_heads> tile_bits;
  const auto load_bits = [&](int tile) {
    const std::int64_t first_word = lists_of_heads ? table(anew(work.head)) * p.walk.bits.words_of_list : 0;
    tile_bits.load(p.walk.bits, first_word, anew(work.tile) * Tile::q_rows + row_in_tile(), p.q_rows, tile);
  };
  // Masks the scores of the box-th tile at once. `how`: of its run.
  const auto mask = [&](auto box, int tile, int how) {
    constexpr int first = box() * (box_rows / 2);
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
    if (lists_of_heads ? !TileRun::bits(how) : p.walk.bits.words == nullptr) return;
    if constexpr (!bits_ahead) load_bits(tile);
    tile_bits.for_each_missing(p.walk.bits, tile, own_column(),
                               [&](int at) { s[first + at] = -std::numeric_limits<float>::infinity(); });
  };
  const auto pack_probabilities = [&] {
#pragma unroll
    for (int j = 0; j < N / 4; ++j) probabilities[j] = gpu::pack<T>(s[2 * j], s[2 * j + 1]);
  };
  // Turns: while one warpgroup does its softmax the tensor cores work for another.
  const auto turn_wait = [&] {
    if constexpr (Tile::consumers > 1) named_sync(1 + group, 2 * warpgroup);
  };
  const auto turn_pass = [&] {
    if constexpr (Tile::consumers > 1) named_arrive(1 + (group + 1) % Tile::consumers, 2 * warpgroup);
  };

  if (group == Tile::consumers - 1) turn_pass();  // the first turn is warpgroup 0's
  RingPosition<Tile::stages> k_at, v_at;
  int q_parity = 0;
  for (int n = 0;; ++n) {
    work = memory.work().get(n);
    if (work.head < 0) return;
    load_spans(spans, p.walk, p.classes, work.head % p.classes.count, lists_of_heads ? table(work.head) : 0,
               p.q_rows, work.tile * Tile::q_rows + row_in_tile());
    // Calls action with what takes the rows of this residue class, and where this tile is among them.
    const auto with_rows = [&](const auto& action) {
      const auto [batch, heads, residue] =
          HeadAndClass::of(anew(work.head), p.heads / Tile::heads, p.classes.count);
      const auto of_class = [&](const auto& rows) { return rows.every(p.classes.count, residue); };
      action(of_class, batch, heads * Tile::heads + Tile::head_of(group),
             anew(work.tile) * Tile::q_rows + row_in_tile(),
             static_cast<int>(p.classes.rows(p.q_rows, residue)));
    };
    const auto finish = [&](bool with_lse) {
      with_rows([&](const auto& of_class, int batch, int head, int row, int rows) {
        const gpu::Rows<float> lse = with_lse ? of_class(p.lse) : gpu::Rows<float>{};
        const FinishedRows to{of_class(p.out), lse, of_class(p.finished)};
        state.finish(to, batch, head, row, rows, p.scale);
      });
    };
    const auto start_out = [&] {
      with_rows([&](const auto& of_class, int batch, int head, int row, int) {
        state.start_out(of_class(p.out), batch, head, row);
      });
    };
    with_rows([&](const auto& of_class, int batch, int head, int row, int rows) {
      state.start_rows(of_class(p.lse), batch, head, row, p.fresh ? 0 : rows, p.inverse_scale);
    });
    Cursor<true> cursor(p.walk.runs + work.first_run, Tile::kv_boxes == 1 ? work.runs : 0);
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
      release(memory.q_empty());
      start_out();
      state.keep();
      finish(p.fresh);  // a running LSE to which nothing is added keeps its bits
      continue;
    }
    if constexpr (Tile::kv_boxes == 1) cursor.next_in_run();
    if constexpr (bits_ahead) {
      if (cursor.bits()) load_bits(cursor.tile());
    }
    wait(memory.q_full(), q_parity);
    q_parity ^= 1;
    wait(memory.k_full(k_at.stage), k_at.parity);
    if constexpr (Tile::kv_boxes > 1) tiles.get(memory.tiles(k_at.stage));
    issue_scores(k_at.stage);
    start_out();  // arrives while the first scores are computed
    products_wait<0>();
    pin(s);
    release(memory.k_empty(k_at.stage));
    k_at.advance();
    if (starts_partial()) mask_tiles();
    state.exponentiate(p.factor);
    pack_probabilities();
    state.rescale(1.0f);

    // P·V lags one tile behind, so that a turn at the tensor cores is two products long: longer than a
    // softmax, which the other warpgroups' turns hide.
    const auto step = [&](bool partial) {
      if constexpr (bits_ahead) {
        if (partial && cursor.bits()) load_bits(cursor.tile());
      }
      wait(memory.k_full(k_at.stage), k_at.parity);
      turn_wait();
      issue_scores(k_at.stage);
      wait(memory.v_full(v_at.stage), v_at.parity);
      issue_output(v_at.stage);
      turn_pass();
      products_wait<1>();
      pin(s);
      release(memory.k_empty(k_at.stage));
      k_at.advance();
      if (partial) mask_tiles();
      state.exponentiate(p.factor);
      pin(s);
      products_wait<0>();
      pin(o);
      pin(s);
      pin(probabilities);
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
    release(memory.q_empty());
    wait(memory.v_full(v_at.stage), v_at.parity);
    issue_output(v_at.stage);
    products_wait<0>();
    pin(o);
    release(memory.v_empty(v_at.stage));
    v_at.advance();
    finish(true);
  }
}

template <class T, class Tile, bool lists_of_heads>
__global__ void __launch_bounds__(Tile::threads, Tile::blocks_of_sm)
    forward_kernel(const __grid_constant__ ForwardParameters p) {
  extern __shared__ __align__(1024) unsigned char dynamic[];
  const ForwardMemory<Tile> memory(dynamic);
  if (threadIdx.x == 0) {
    for (const RowMaps* maps : {&p.q, &p.k, &p.v}) maps->prefetch();
    memory.init();
  }
  __syncthreads();
  if (threadIdx.x < warpgroup) {
    lower_registers<Tile::producer_registers>();
    if (threadIdx.x == 0) copy_forward<Tile>(p, memory);
  } else {
    raise_registers<Tile::consumer_registers>();
    compute_forward<T, Tile, lists_of_heads>(p, memory);
  }
}

}  // namespace annulus::attention::hopper
