// The kernels for Hopper alone, without Kokkos or the rest of the library: what a developer of them builds in
// a minute and runs on a GPU (docs/gpu.md).
//
//   hopper_kernels check CASES [SEED [HEAD_DIM]]
//     Random shapes, layouts, masks, types and options against double precision on the GPU; in the fixed
//     order also the same bits again with another number of multiprocessors. A third of the cases computes
//     its result a second time in the inputs' type, which must be the first one rounded. Half of the cases
//     have gaps of NaN behind their rows, which nobody may read or write. A tenth has 904 to 3103 tokens and
//     few heads: their reference is that of some three of the others, which have 4 to 903; with block lists
//     of heads such a case has 33,280 to 36,992. Exit status 1 if any is outside its tolerance.
//   hopper_kernels time HEAD_DIM ROWS HEADS KV_HEADS MASK [PAUSE_SECONDS [SOFT_CAP]]
//     TFLOP/s in bf16: forward (merging), backward in any order and in the fixed order, into running
//     gradients. Medians of nine calls that each start after a pause (0.4 s by default; 0: one call after the
//     other, the sustained rate). MASK: full, causal, window:LEFT, dilation:D, blocks:SIZE:PERCENT (random
//     blocks and the diagonal), lists:SIZE:PERCENT (the same, other blocks for each head),
//     shared:SIZE:PERCENT (other blocks for each kv head), slashes:COUNT:RUN (causal, blocks of 64 at so many
//     random block distances for each kv head, in runs of RUN neighbours, 1 by default) or
//     head-slashes:COUNT:RUN (others for each head), columns:COUNT:SLASHES (causal, so many random keys of
//     each head without the blocks of 64 at so many random distances), queries:SIZE:PERCENT:ALIKE (causal,
//     PERCENT of the blocks of SIZE keys for each query of a kv head, the same ones for ALIKE neighbours, 1
//     by default). FLOPs: 2 · (head_dim + columns of V) for each pair that the mask allows, and 6 · head_dim
//     + 4 · columns of V backward; HEAD_DIM 192 has V of 128. SOFT_CAP of the scores (head_dim 64, 128 and
//     256, no lists); 0: none. Where the kernel joins sinks, also the milliseconds of a forward pass to bf16
//     without and with them.
//   hopper_kernels ring HEAD_DIM TOKENS RANKS HEADS KV_HEADS LAYOUT [TRAFFIC [FREE_SMS [ROUNDS]]]
//     Milliseconds of the backward pass of each block that a rank in the middle of a ring computes under the
//     causal mask, in any order and in the fixed one, in turns, medians of 9 rounds without pauses. LAYOUT:
//     contiguous, zigzag or striped. TRAFFIC beside: none, device:BLOCKS (so many blocks of another kernel
//     copy in the GPU's memory) or host:BLOCKS (which also poll the host's memory). Exit status 1 if dQ in
//     the fixed order had other bits in one of the calls.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "check.hpp"
#include "ring.hpp"
#include "time.hpp"

int main(int count, char** arguments) {
  using namespace annulus::hopper_kernels;
  const std::string command = count > 1 ? arguments[1] : "";
  const auto number = [&](int i, double otherwise) {
    return i < count ? std::atof(arguments[i]) : otherwise;
  };
  const auto takes = [&](int head_dim) {
    const auto columns = static_cast<std::size_t>(std::max(head_dim, 0));
    return hopper::has_tiles(columns) || (columns == 192 && command != "ring");
  };
  if (command == "check" && count > 2) {
    const int head_dim = static_cast<int>(number(4, 0));
    if (head_dim == 0 || takes(head_dim))
      return check_cases(static_cast<int>(number(2, 0)), static_cast<unsigned>(number(3, 1)), head_dim);
  }
  if (command == "time" && count > 6) {
    const int head_dim = static_cast<int>(number(2, 0)), heads = static_cast<int>(number(4, 0)),
              kv_heads = static_cast<int>(number(5, 0));
    const auto rows = static_cast<std::int64_t>(number(3, 0));
    const MaskCase mask = parse_mask(arguments[6], rows, heads, kv_heads);
    const double pause = number(7, 0.4), soft_cap = number(8, 0);
    const bool takes_cap = soft_cap == 0 || (mask.rule.block_size == 0 &&
                                             hopper::has_capped_tiles(static_cast<std::size_t>(head_dim)));
    if (takes(head_dim) && takes_cap) {
      time_case(head_dim, rows, heads, kv_heads, mask, pause, static_cast<float>(soft_cap));
      return 0;
    }
  }
  if (command == "ring" && count > 7) {
    const std::string name = arguments[7], traffic = count > 8 ? arguments[8] : "none";
    const int layout = name == "striped" ? 2 : name == "zigzag" ? 1 : 0;
    const auto tokens = static_cast<std::int64_t>(number(3, 0));
    const int head_dim = static_cast<int>(number(2, 0)), ranks = static_cast<int>(number(4, 1)),
              heads = static_cast<int>(number(5, 0)), kv_heads = static_cast<int>(number(6, 0)),
              free_sms = static_cast<int>(number(9, 0)), rounds = static_cast<int>(number(10, 9));
    if (takes(head_dim)) {
      return time_ring(head_dim, tokens, ranks, heads, kv_heads, layout, free_sms, traffic, rounds) ? 0 : 1;
    }
  }
  std::fprintf(stderr,
               "usage: hopper_kernels check CASES [SEED [HEAD_DIM]]\n"
               "       hopper_kernels time HEAD_DIM ROWS HEADS KV_HEADS MASK [PAUSE_SECONDS [SOFT_CAP]]\n"
               "       hopper_kernels ring HEAD_DIM TOKENS RANKS HEADS "
               "KV_HEADS LAYOUT [TRAFFIC [FREE_SMS [ROUNDS]]]\n");
  return 2;
}
