#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "bench/kernels/case.hpp"
#include "prediction/measurement/rates.hpp"

namespace annulus::bench {

struct RateOptions {
  std::vector<std::int64_t> widths = {512, 1024, 2048, 4096};  ///< of the square weights of products
  std::int64_t tokens = 0;    ///< rows of products and kernels; 0: 8192 on a device, 1024 on the host
  std::vector<DType> dtypes;  ///< of products; kernels are timed with the first. f16 has neither
  std::optional<KernelSizes> kernels = {};  ///< nothing: arrays that no cache holds
  measurement::Sampling sampling;

  /// Fills in what was left open. Throws Error naming the option whose value makes no sense.
  void complete();
};

/// The products of a linear layer, for each type and width. Widths that would take longer than
/// sampling.seconds, judged by the one before, are left out with a note. On all ranks at once; collective.
measurement::ProductMeasurement measure_products(comm::Communicator& communicator,
                                                 const RateOptions& options);

/// What memory gives to training: of the device, all bytes over all seconds of the kernels of norms, rotary
/// positions, SwiGLU and heads; of the host, AdamW with memory.offload_optimizer; between them, copies of
/// 64 MiB to and from pinned memory, the slower direction (on a device alone). On all ranks at once;
/// collective.
measurement::MemoryMeasurement measure_memory(comm::Communicator& communicator, const RateOptions& options);

}  // namespace annulus::bench
