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

/// By category.
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

namespace detail {
void memory_allocated(MemoryKind kind, MemoryCategory category, std::int64_t bytes);
void memory_released(MemoryKind kind, MemoryCategory category, std::int64_t bytes) noexcept;
/// Bytes in use serve another purpose from now on.
void memory_moved(MemoryKind kind, MemoryCategory from, MemoryCategory to, std::int64_t bytes) noexcept;

/// What to do where memory of this kind does not hold these bytes: a remedy for what takes most of them, the
/// state of a model or what grows with the sequence. It names keys of annulus-train.
std::string memory_remedy(MemoryKind kind, const MemoryBytes& bytes);

/// An allocation that is asked for.
struct MemoryRequest {
  MemoryKind kind;
  MemoryCategory category;
  std::string label;
  std::size_t bytes;
};

/// Throws Error: what was asked for, what is free (`total` is 0 where nobody knows it), what is in use for
/// what, and what to do.
[[noreturn]] void out_of_memory(const MemoryRequest& request, std::int64_t free, std::int64_t total);

/// Counts on construction, discounts on destruction.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryKind kind, MemoryCategory category, std::int64_t bytes)
      : kind_(kind), category_(category), bytes_(bytes) {
    memory_allocated(kind_, category_, bytes_);
  }
  MemoryCharge(MemoryCategory category, std::int64_t bytes)
      : MemoryCharge(MemoryKind::host, category, bytes) {}
  MemoryCharge(MemoryCharge&& other) noexcept
      : kind_(other.kind_), category_(other.category_), bytes_(other.bytes_) {
    other.bytes_ = 0;
  }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    if (this != &other) {
      release();
      kind_ = other.kind_;
      category_ = other.category_;
      bytes_ = other.bytes_;
      other.bytes_ = 0;
    }
    return *this;
  }
  ~MemoryCharge() { release(); }

 private:
  void release() noexcept {
    if (bytes_ != 0) memory_released(kind_, category_, bytes_);
    bytes_ = 0;
  }
  MemoryKind kind_ = MemoryKind::host;
  MemoryCategory category_ = MemoryCategory::workspace;
  std::int64_t bytes_ = 0;
};
}  // namespace detail

}  // namespace annulus
