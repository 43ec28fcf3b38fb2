#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/kokkos/memory_use.hpp>

namespace annulus::prediction {

/// Bytes of a rank by category at one moment. On a CPU everything is memory of the host.
struct MomentMemory {
  std::string moment;  ///< a part of a pass (model::text), "sums of gradients", "optimizer" or "validation"
  MemoryBytes device{}, host{};
};

/// The most at any moment.
struct PeakBytes {
  MemoryBytes categories{};  ///< of each by itself: these need not be there at once
  std::int64_t total = 0;    ///< of all categories at one moment, `moment`
  MemoryBytes at_once{};     ///< by category at that moment
  std::string moment;
};

/// Memory of an optimizer step after the first, and of a validation behind it.
struct UpdateMemory {
  std::vector<MomentMemory> moments = {};       ///< of the optimizer step
  std::optional<MomentMemory> validation = {};  ///< where it takes memory of its own
  PeakBytes device = {}, host = {};
  MemoryBytes offloaded = {};  ///< of the host: what memory.offload_* keeps there
  const PeakBytes& of(MemoryKind kind) const { return kind == MemoryKind::device ? device : host; }
};

}  // namespace annulus::prediction
