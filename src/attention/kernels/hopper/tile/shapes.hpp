#pragma once

#include <algorithm>
#include <annulus/base/division.hpp>
#include <cstdint>
#include <type_traits>

#include "attention/kernels/hopper/ptx/warpgroups.hpp"
#include "attention/kernels/hopper/tile/form.hpp"

/// Tile shapes, and why they are what they are. An SM has 227 KB of shared memory and 65536
/// registers for the blocks that run on it, in most cases one.
namespace annulus::attention::hopper {

/// dQ passes through shared memory in boxes of 32 columns of 32 bits.
inline constexpr int gradient_box_columns = 32;

/// Columns of V, O and their gradients, of tiles whose Q and K have `head_dim`: multi-head latent attention
/// (DeepSeek-V3) has 192 and 128.
constexpr int v_columns(int head_dim) {
  return head_dim == 192 ? 128 : head_dim;
}

/// A block starts with equal shares of its registers, in steps of eight, and can only move those around: who
/// asks for more waits for ever.
constexpr bool registers_suffice(int consumers, int of_consumers, int of_producers, int blocks_of_sm = 1) {
  const int threads = warpgroup * (consumers + 1);
  const int at_start = 65536 / (threads * blocks_of_sm) / 8 * 8 * threads;
  return warpgroup * (consumers * of_consumers + of_producers) <= at_start;
}

/// A tile of another form than `whole`.
template <TileForm form, class Tile>
struct Formed : Tile {
  static constexpr bool clipped = form == TileForm::clipped, capped = form == TileForm::capped,
                        sinks = form == TileForm::sinks;
};
template <TileForm form, class Tile>
using WithForm = std::conditional_t<form == TileForm::whole, Tile, Formed<form, Tile>>;

/// Forward: a block holds 64 queries for each consumer, and keys pass by in tiles of kv_rows.
///
/// head_dim 64: 192 × 128, three consumers of 160 registers. The exponentials of a tile take as long as its
/// products; a third warpgroup keeps the tensor cores busy (in our prototype 510 TFLOP/s, 430 with two).
/// Block lists have 128 × 128: their blocks are multiples of 64 or 128, and a tile across two rows of blocks
/// visits what either of them lists.
///
/// head_dim 96 and 128: 128 × 128, two consumers of 232 registers, of which S, P and O take 144 and 160.
///
/// head_dim 192, V of 128: 128 × 128, as above; Q with two stages takes 208 KB.
///
/// head_dim 256: 128 × 80. O takes 128 registers, and Q with two stages of 80 keys 224 KB. 64 keys
/// are a tenth slower: a softmax starts and ends as often for fewer keys. Block lists have 128 × 64.
///
/// Block lists of 64 × 64 that heads share (heads = 2): the same 64 queries of two heads, with 64 keys. What
/// a list has is then whole tiles: of one slash of blocks (vertical-slash sparsity) 128 × 128 tiles hold
/// three eighths. The forward pass takes two such tiles of keys at once, wherever they stand (kv_boxes = 2,
/// up to head_dim 128), because a softmax of 64 keys takes longer than their products. Where each head has a
/// list of its own: 64 × 64 with one consumer, and two blocks on an SM, so that the tensor cores work for one
/// while the other takes exponentials. At head_dim 256 two of them have no room: 128 × 64 as above.
///
/// Narrow windows (packed = 4): the 64 rows of a consumer are 16 queries of each of four heads that read the
/// same keys. Four consumers have 64 queries then and, under a window of 128 keys, visit 192 keys where 192
/// queries of one head would visit 384. A loop of three tiles is too short to hide how long Q takes to come,
/// so there are two buffers of it.
template <int head_dim_, int consumers_ = head_dim_ <= 64 ? 3 : 2, int kv_rows_ = head_dim_ <= 192 ? 128 : 80,
          int heads_ = 1, int kv_boxes_ = 1, int packed_ = 1>
struct ForwardTile {
  static constexpr int head_dim = head_dim_, v_dim = v_columns(head_dim);
  static constexpr bool clipped = false, capped = false, sinks = false;
  static constexpr int consumers = consumers_, kv_rows = kv_rows_;
  /// The keys of a product: so many tiles of the loop, which need not be neighbours.
  static constexpr int kv_boxes = kv_boxes_, box_rows = kv_rows / kv_boxes;
  /// Heads of queries that read the same keys; with more than one each consumer has the queries of one, or,
  /// packed, of so many, one behind the other.
  static constexpr int heads = heads_, packed = packed_;
  static constexpr int q_rows = 64 * consumers / heads;  ///< of a head
  static constexpr int packed_rows = 64 / packed;        ///< of a head in one consumer
  static constexpr int q_stages = packed == 1 ? 1 : 2;
  static constexpr int rows_in_memory = 64 * consumers;
  static constexpr int blocks_of_sm = consumers == 1 ? 2 : 1;
  static constexpr int stages = head_dim <= 128 && kv_rows == 64 ? (blocks_of_sm == 1 ? 4 : 3) : 2;
  static_assert(heads == 1 || heads == consumers || heads == packed);
  static_assert(packed == 1 || packed == 4, "a warp has the rows of one head");
  /// Where the queries of a consumer begin, from the tile's first row and head.
  ANNULUS_FUNCTION static constexpr int first_row(int consumer) {
    return heads == packed ? packed_rows * consumer : 0;
  }
  ANNULUS_FUNCTION static constexpr int head_of(int consumer) { return heads == packed ? 0 : consumer; }
  static constexpr int atoms = (head_dim + atom_columns - 1) / atom_columns,
                       v_atoms = (v_dim + atom_columns - 1) / atom_columns;
  static constexpr int threads = warpgroup * (consumers + 1);
  static constexpr int consumer_registers = consumers == 4   ? 112
                                            : consumers == 3 ? 160
                                            : consumers == 2 ? 232
                                                             : 216;
  static constexpr int producer_registers = consumers >= 3 ? 32 : 40;
  static_assert(consumers <= most_consumers &&
                registers_suffice(consumers, consumer_registers, producer_registers, blocks_of_sm));
};

/// Backward: a block holds kv_rows keys, and queries pass by in tiles of q_rows.
///
/// head_dim 64: 64 × 192, each of three consumers has 64 keys. They take turns at dQ
/// (backward/kernel.hpp). With two consumers who meet at every visit, 128 × 128, it was 7 % slower in any
/// order and 13 % in the fixed one; block lists keep that shape, because 192 keys lie across their blocks.
///
/// head_dim 96 and 128: 64 × 128. dK and dV take 128 registers of 232, so that S and dP can have 32 each. The
/// two buffers that dQ leaves through take 64 KB. Two consumers that take turns at dQ wait for one another
/// unless they compute it a visit later: that is 3 % faster than meeting at every visit, turns without the
/// delay are no faster.
///
/// head_dim 192 and 256: 64 × 64, dK and dV alone (backward/key_gradients.hpp): each consumer has one of
/// them, 128 registers. A second kernel computes dQ with the tiles of the forward pass
/// (backward/query_gradients.hpp). So seven products take the place of five, but no dQ travels: adding 64 KB
/// of it for 64 × 64 scores took 40 % of the time.
///
/// Block lists of 64 × 64 have that form as well: seven products for whole tiles, where 64 × 128 are half
/// empty.
template <int head_dim_, bool has_dq_ = head_dim_ <= 128, int consumers_ = 2>
struct BackwardTile {
  static constexpr int head_dim = head_dim_, v_dim = v_columns(head_dim);
  static constexpr bool clipped = false, capped = false;
  static constexpr bool has_dq = has_dq_;
  static constexpr int blocks_of_sm = 1;
  static constexpr int consumers = consumers_;
  /// Each consumer computes dQ of every second or third visit.
  static constexpr bool rotates_dq = has_dq && (consumers == 3 || head_dim > 64);
  /// dQ is computed a visit later: the dS of all are there, and nobody waits for another's exponentials.
  /// Three consumers hardly wait, and are 1 to 2 % faster without the delay.
  static constexpr bool dq_a_tile_later = rotates_dq && consumers == 2;
  static constexpr int stages = rotates_dq        ? consumers
                                : has_dq          ? 2
                                : head_dim <= 128 ? 4
                                : head_dim == 192 ? 3
                                                  : 2;
  static constexpr int q_rows = has_dq && head_dim <= 64 && !rotates_dq ? 128 : 64,
                       kv_rows = has_dq ? 64 * consumers : 64;
  static constexpr int statistics_bytes = q_rows * 4;  ///< LSE or D of a tile
  /// Fine lists: each consumer computes every other visit, and both have sums of dK and dV of their own.
  static constexpr bool alternates = !has_dq && head_dim <= 128;
  /// K and V are left factors from registers: where each consumer has one of the gradients, shared memory
  /// would otherwise take longer for a visit than the tensor cores. At 256 there is no room.
  static constexpr bool keys_in_registers = !has_dq && head_dim == 192;
  /// dQ leaves in boxes (gradient_box_columns), from so many buffers.
  static constexpr int gradient_boxes = (head_dim + gradient_box_columns - 1) / gradient_box_columns;
  static constexpr int gradient_stages = !has_dq ? 0 : head_dim > 64 || rotates_dq ? 2 : 1;
  static constexpr int atoms = (head_dim + atom_columns - 1) / atom_columns,
                       v_atoms = (v_dim + atom_columns - 1) / atom_columns;
  static constexpr int threads = warpgroup * (consumers + 1);
  static constexpr int consumer_registers = consumers == 3 ? 160 : 232,
                       producer_registers = consumers == 3 ? 32 : 40;
  static_assert(consumers <= most_consumers &&
                registers_suffice(consumers, consumer_registers, producer_registers));

  /// Heads run in sections whose Q, dO and dQ stay in the L2 cache. The blocks of a head read the same
  /// queries, but drift apart over a long loop; where rows leave the cache before the last block has read
  /// them, memory sets the speed. TFLOP/s of an H100 with 1, 2, 4 and 8 heads at once, without a mask in the
  /// fixed order: 641, 628, 379, 324 (65536 rows of 128) and 571, 576, 568, 551 (of 64, whose tiles read less
  /// for their work).
  ///
  /// `staggered`: blocks keep an order and their loops are uneven, as under a causal mask. Then the blocks of
  /// a head start one after the other, and with more heads they wait less. That weighs more than the cache:
  /// 379, 431, 540, 575 (8192 rows of 128), 602, 638, 645, 641 (65536), 615, 633, 637, 398 (131072). So eight
  /// times as many run at once.
  ///
  /// `columns`: of a row in memory. `group`: heads that read a kv head. They come together where staggered,
  /// otherwise one after the other. Half as many kv heads are best: 681, 677, 610, 535 in any order, 645,
  /// 660, 644, 635 staggered (16384 rows of 128, causal, four heads for each kv head).
  static constexpr std::int64_t kv_heads_in_section(std::int64_t q_rows, int columns, bool staggered,
                                                    int group) {
    constexpr std::int64_t cached = std::int64_t{head_dim <= 64 ? 64 : 32} << 20;
    const std::int64_t bytes_of_row = columns * (has_dq ? 2 + 2 + 4 : 2 + 2);
    const std::int64_t bytes_of_head =
        std::max<std::int64_t>(q_rows, 1) * bytes_of_row * (staggered ? group : 1);
    const std::int64_t heads = (staggered ? 8 : 1) * cached / bytes_of_head / (group > 1 ? 2 : 1);
    return std::clamp<std::int64_t>(heads, 1, 8);
  }
};

/// Forward: heads run in sections whose K and V stay in the L2 cache (50 MB, in two halves, and O passes
/// through it). Measured with 16384 rows of 128, full: 720 TFLOP/s with 32 MB, 726 with 16, 727 with 8.
inline constexpr std::int64_t section_bytes = std::int64_t{20} << 20;

}  // namespace annulus::attention::hopper
