#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace annulus {

/// What memory is used for; the trainer reports the peak of each.
enum class MemoryCategory : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  communication,
  workspace,
  data
};
inline constexpr int memory_category_count = 7;
std::string_view name_of(MemoryCategory category);

/// Bytes by category.
using MemoryBytes = std::array<std::int64_t, memory_category_count>;

/// Whose memory it is. Pinned memory is the host's.
enum class MemoryKind : std::uint8_t { host, device };
std::string_view name_of(MemoryKind kind);

/// Bytes in use and their peak, by category and in all. One per process and kind (ranks that are threads of
/// one process share it). Thread safe.
struct MemoryUse {
  MemoryBytes current{}, peak{};
  std::int64_t total_current = 0, total_peak = 0;
};
/// What Owned holds there. Libraries (Kokkos, cuBLAS, NCCL, MPI) have memory of their own beside it.
MemoryUse memory_use(MemoryKind kind = MemoryKind::host);

/// Sets every peak to what is in use now.
void reset_memory_peaks();

/// Highest resident set of this process so far, in bytes, from the operating system.
std::int64_t peak_resident_bytes();

/// Bytes that this host still has: those of the operating system, or fewer where a control group (of a batch
/// job, of a container) allows less.
std::int64_t available_host_memory();

/// "parameters 12.50 GB, optimizer 4096 bytes": what is not 0.
std::string bytes_text(const MemoryBytes& bytes);

}  // namespace annulus
