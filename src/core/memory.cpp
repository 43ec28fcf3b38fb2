#include <sys/resource.h>

#include <annulus/base/error.hpp>
#include <annulus/core/memory.hpp>
#include <atomic>
#include <fstream>
#include <limits>

namespace annulus {

namespace {

/// Bytes in use and the most that ever were.
struct Gauge {
  std::atomic<std::int64_t> current{0}, peak{0};

  void add(std::int64_t bytes) {
    const std::int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t seen = peak.load(std::memory_order_relaxed);
    while (seen < now && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
  }
};

struct Ledger {
  std::array<Gauge, memory_category_count> category;
  Gauge total;
};

Ledger& ledger() {
  static Ledger instance;
  return instance;
}

Gauge& gauge_of(MemoryCategory category) {
  return ledger().category[static_cast<std::size_t>(category)];
}

}  // namespace

std::string_view name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::parameters:
      return "parameters";
    case MemoryCategory::gradients:
      return "gradients";
    case MemoryCategory::optimizer:
      return "optimizer";
    case MemoryCategory::activations:
      return "activations";
    case MemoryCategory::communication:
      return "communication";
    case MemoryCategory::workspace:
      return "workspace";
    case MemoryCategory::data:
      return "data";
  }
  return "?";
}

MemoryUse memory_use() {
  MemoryUse use;
  for (std::size_t c = 0; c < use.current.size(); ++c) {
    use.current[c] = ledger().category[c].current.load(std::memory_order_relaxed);
    use.peak[c] = ledger().category[c].peak.load(std::memory_order_relaxed);
  }
  use.total_current = ledger().total.current.load(std::memory_order_relaxed);
  use.total_peak = ledger().total.peak.load(std::memory_order_relaxed);
  return use;
}

void reset_memory_peaks() {
  const auto reset = [](Gauge& gauge) { gauge.peak = gauge.current.load(); };
  for (Gauge& gauge : ledger().category) reset(gauge);
  reset(ledger().total);
}

std::int64_t peak_resident_bytes() {
  // VmHWM before getrusage: the latter keeps the peak of the process image that exec replaced.
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(std::numeric_limits<std::streamsize>::max(), '\n'))
    if (std::int64_t kib = 0; key == "VmHWM:" && status >> kib) return kib * 1024;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

namespace detail {

void memory_allocated(MemoryCategory category, std::int64_t bytes) {
  ANNULUS_ASSERT(bytes >= 0);
  gauge_of(category).add(bytes);
  ledger().total.add(bytes);
}

void memory_released(MemoryCategory category, std::int64_t bytes) noexcept {
  gauge_of(category).current.fetch_sub(bytes, std::memory_order_relaxed);
  ledger().total.current.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace detail

}  // namespace annulus
