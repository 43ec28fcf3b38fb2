#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/base/kokkos/memory_use.hpp>
#include <annulus/prediction/step/setting.hpp>

namespace annulus::prediction {

/// Bytes of a rank by category at one moment. On a CPU everything is memory of the host.
struct MomentMemory {
  std::string moment;  ///< a part of a pass (model::text), "sums of gradients" or "optimizer"
  MemoryBytes device{}, host{};
};

/// The most at any moment.
struct PeakBytes {
  MemoryBytes categories{};  ///< of each by itself: these need not be there at once
  std::int64_t total = 0;    ///< of all categories at one moment, `moment`
  MemoryBytes at_once{};     ///< by category at that moment
  std::string moment;
};

/// Of an optimizer step after the first, in order.
struct UpdateMemory {
  std::vector<MomentMemory> moments;
  PeakBytes device, host;
  MemoryBytes offloaded{};  ///< of the host: what memory.offload_* keeps there
  const PeakBytes& of(MemoryKind kind) const { return kind == MemoryKind::device ? device : host; }
};

/// What arrays of Annulus take on a rank. Lists by which the optimizer and the norm of gradients work, tables
/// of attention's kernels, some thousandths of all, are left out; libraries come on top (docs/memory.md).
UpdateMemory update_memory(const Setting& setting, const RankShare& share);

/// The peaks of these moments.
UpdateMemory with_peaks(std::vector<MomentMemory> moments);

}  // namespace annulus::prediction
