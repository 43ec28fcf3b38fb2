#include "base/kokkos/memory/memory.hpp"

#include <sys/resource.h>

#include <annulus/base/error.hpp>
#include <atomic>
#include <fstream>
#include <limits>

#include "base/kokkos/instantiate.hpp"
#include "base/units.hpp"

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

Ledger& ledger(MemoryKind kind) {
  static std::array<Ledger, 2> instances;
  return instances[static_cast<std::size_t>(kind)];
}

Gauge& gauge_of(MemoryKind kind, MemoryCategory category) {
  return ledger(kind).category[static_cast<std::size_t>(category)];
}

}  // namespace

std::string_view name_of(MemoryCategory category) {
  constexpr std::array<std::string_view, memory_category_count> names{
      "parameters", "gradients", "optimizer", "activations", "communication", "workspace", "data"};
  return names.at(static_cast<std::size_t>(category));
}

std::string_view name_of(MemoryKind kind) {
  return kind == MemoryKind::host ? "host" : "device";
}

MemoryUse memory_use(MemoryKind kind) {
  const Ledger& all = ledger(kind);
  MemoryUse use;
  for (std::size_t c = 0; c < use.current.size(); ++c) {
    use.current[c] = all.category[c].current.load(std::memory_order_relaxed);
    use.peak[c] = all.category[c].peak.load(std::memory_order_relaxed);
  }
  use.total_current = all.total.current.load(std::memory_order_relaxed);
  use.total_peak = all.total.peak.load(std::memory_order_relaxed);
  return use;
}

void reset_memory_peaks() {
  const auto reset = [](Gauge& gauge) { gauge.peak = gauge.current.load(); };
  for (const MemoryKind kind : {MemoryKind::host, MemoryKind::device}) {
    for (Gauge& gauge : ledger(kind).category) reset(gauge);
    reset(ledger(kind).total);
  }
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

std::string bytes_text(const MemoryBytes& bytes) {
  std::string text;
  for (int c = 0; c < memory_category_count; ++c)
    if (const std::int64_t of = bytes[static_cast<std::size_t>(c)]; of != 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<MemoryCategory>(c)),
                          bytes_text(of));
  return text;
}

namespace detail {

void memory_allocated(MemoryKind kind, MemoryCategory category, std::int64_t bytes) {
  ANNULUS_ASSERT(bytes >= 0);
  gauge_of(kind, category).add(bytes);
  ledger(kind).total.add(bytes);
}

void memory_released(MemoryKind kind, MemoryCategory category, std::int64_t bytes) noexcept {
  gauge_of(kind, category).current.fetch_sub(bytes, std::memory_order_relaxed);
  ledger(kind).total.current.fetch_sub(bytes, std::memory_order_relaxed);
}

void memory_moved(MemoryKind kind, MemoryCategory from, MemoryCategory to, std::int64_t bytes) noexcept {
  gauge_of(kind, from).current.fetch_sub(bytes, std::memory_order_relaxed);
  gauge_of(kind, to).add(bytes);  // that of all categories has not changed
}

std::string memory_remedy(MemoryKind kind, const MemoryBytes& bytes) {
  std::int64_t state = 0, others = 0;
  for (int c = 0; c < memory_category_count; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    const bool of_state = category == MemoryCategory::parameters || category == MemoryCategory::gradients ||
                          category == MemoryCategory::optimizer;
    (of_state ? state : others) += bytes[static_cast<std::size_t>(c)];
  }
  const bool device = kind == MemoryKind::device;
  const char* const more = device ? "GPUs" : "ranks on other machines";
  if (state > others) {
    return fmt::format(
        "let each rank hold a shard of parameters, gradients and optimizer state (annulus-train: "
        "parallel.zero = 1, 2 or 3, docs/memory.md), {}use more {}, or take a smaller model",
        device ? "keep the optimizer's state in the host's memory (memory.offload_optimizer = true), " : "",
        more);
  }
  return fmt::format(
      "spread the sequence over more {}, or shorten it; fewer layers, heads or sequences at a time "
      "(annulus-train: train.sequences_per_pass) need less, too",
      more);
}

void out_of_memory(const MemoryRequest& request, std::int64_t free, std::int64_t total) {
  const MemoryUse use = memory_use(request.kind);
  const std::string in_use = bytes_text(use.current);
  MemoryBytes wanted = use.current;
  wanted[static_cast<std::size_t>(request.category)] += static_cast<std::int64_t>(request.bytes);
  fail("out of {} memory: {} ({}) needs {}, and {} are free{}. This process uses {} of it{}: {}",
       name_of(request.kind), request.label, name_of(request.category),
       bytes_text(static_cast<std::int64_t>(request.bytes)), bytes_text(free),
       total > 0 ? fmt::format(" of {}", bytes_text(total)) : "", bytes_text(use.total_current),
       in_use.empty() ? "" : fmt::format(" ({})", in_use), memory_remedy(request.kind, wanted));
}

template <class Exec>
void zero_bytes(const Exec& exec, void* data, std::size_t bytes) {
  Kokkos::deep_copy(exec,
                    Kokkos::View<std::byte*, typename Exec::memory_space, Kokkos::MemoryUnmanaged>(
                        static_cast<std::byte*>(data), bytes),
                    std::byte{0});
}
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, zero_bytes)

}  // namespace detail

}  // namespace annulus
