#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "prediction/measurement/sampling.hpp"

namespace annulus::measurement {

using simulator::BlockMask;
/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
BlockMask parse_block_mask(std::string_view name, std::string_view field);

struct BlockOptions {
  std::vector<int> head_dims = {64, 128};
  std::vector<DType> dtypes = {DType::f32, DType::bf16};  ///< storage of q, k, v, d_o: f32, bf16, f16
  /// Query rows and key rows of the blocks: those of GPUs gain up to the last of them.
  std::vector<std::int64_t> rows = {256, 1024, 4096, 16384};
  std::vector<BlockMask> masks = {BlockMask::full, BlockMask::causal};
  int heads = 8, kv_heads = 8;
  attention::Kernel kernel = attention::Kernel::automatic;
  Sampling sampling = {.repetitions = 5, .seconds = 0.5};

  /// Throws Error naming the option (as on the command line) whose value makes no sense.
  void check() const;
};

/// One shape of the local attention kernel.
struct KernelPoint {
  plan::Pass pass = plan::Pass::forward;
  DType dtype = DType::f32;
  int head_dim = 0;
  std::int64_t rows = 0;
  BlockMask mask = BlockMask::full;
  double flops = 0;  ///< as simulator::flops counts them: of unmasked pairs
  Sample seconds;    ///< of the slowest rank

  double rate() const { return flops / seconds.median; }  ///< FLOP/s
};

struct KernelMeasurement {
  std::vector<KernelPoint> points;
  std::vector<std::string> notes;  ///< what was left out, and why
};

/// Times attention::forward and backward on the default execution space, on all ranks at once, as in a run.
/// Blocks that would take longer than sampling.seconds, judged by the one before, are left out with a note.
/// Collective; all ranks get the same.
KernelMeasurement measure_kernels(comm::Communicator& communicator, const BlockOptions& options);

}  // namespace annulus::measurement
