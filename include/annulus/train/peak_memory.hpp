#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include <annulus/core/memory_use.hpp>

namespace annulus::train {

/// Peaks since the start of the process.
struct PeakMemory {
  MemoryUse host, device;     ///< what arrays of Annulus took
  std::int64_t resident = 0;  ///< of the process on the host, from the operating system
};

/// As `peak_memory_bytes` of docs/formats/metrics.md.
nlohmann::json to_json(const PeakMemory& peaks);

}  // namespace annulus::train
