#pragma once

#include <annulus/attention/comm/sums.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/training/parameter_sharding/state_memory.hpp>
#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// What train.dtype says.
inline DType dtype_of_training(const Config& config) {
  return config.train.dtype == "bf16" ? DType::bf16 : DType::f32;
}

/// How a run of so many ranks holds weights, gradients and optimizer state.
inline parameter_sharding::StateLayout state_layout(const Config& config, int ranks) {
  return {.stage = config.parallel.zero,
          .ranks = config.parallel.shard > 0 ? config.parallel.shard : ranks,
          .weights = dtype_of_training(config),
          .offload = config.memory.offload_optimizer,
          .native_sums = comm::parse_sums(config.parallel.sums) == comm::Sums::native};
}

}  // namespace annulus::training
