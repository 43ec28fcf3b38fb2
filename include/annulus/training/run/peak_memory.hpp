#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include <annulus/base/kokkos/memory_use.hpp>

namespace annulus::training {

/// Peaks since the start of the process, in bytes.
struct PeakMemory {
  MemoryUse host, device;     ///< what arrays of Annulus took
  std::int64_t resident = 0;  ///< of the process on the host, from the operating system
  /// What the pool had taken from the GPU at the end of a step: arrays of Annulus and what lies idle between
  /// them.
  std::int64_t device_pool = 0;
  /// What else of the GPU was taken at the end of a step: by CUDA, NCCL and cuBLAS for this process, and by
  /// other processes.
  std::int64_t device_libraries = 0;
};

/// As `peak_memory_bytes` of docs/formats/metrics.md.
nlohmann::json to_json(const PeakMemory& peaks);

}  // namespace annulus::training
