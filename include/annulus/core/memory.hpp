#pragma once

#include <Kokkos_Core.hpp>
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

/// Bytes in use and their peak, by category and in all. One a process (ranks that are threads of one process
/// share it). Thread safe.
struct MemoryUse {
  std::array<std::int64_t, memory_category_count> current{}, peak{};
  std::int64_t total_current = 0, total_peak = 0;
};
MemoryUse memory_use();

/// Sets every peak to what is in use now.
void reset_memory_peaks();

/// Highest resident set of this process so far, in bytes, from the operating system.
std::int64_t peak_resident_bytes();

namespace detail {
void memory_allocated(MemoryCategory category, std::int64_t bytes);
void memory_released(MemoryCategory category, std::int64_t bytes) noexcept;

/// Allocation hook: counts on construction, discounts on destruction.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  MemoryCharge(MemoryCategory category, std::int64_t bytes) : category_(category), bytes_(bytes) {
    memory_allocated(category_, bytes_);
  }
  MemoryCharge(MemoryCharge&& other) noexcept : category_(other.category_), bytes_(other.bytes_) {
    other.bytes_ = 0;
  }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    if (this != &other) {
      release();
      category_ = other.category_;
      bytes_ = other.bytes_;
      other.bytes_ = 0;
    }
    return *this;
  }
  ~MemoryCharge() { release(); }

 private:
  void release() noexcept {
    if (bytes_ != 0) memory_released(category_, bytes_);
    bytes_ = 0;
  }
  MemoryCategory category_ = MemoryCategory::workspace;
  std::int64_t bytes_ = 0;
};
}  // namespace detail

/// A View whose bytes count in the memory report for as long as this object lives. Move-only owner; hand
/// `view()` to kernels. ViewType is a managed Kokkos View; the contents are not initialized unless `zero` is
/// asked for.
template <class ViewType>
class Owned {
 public:
  Owned() = default;

  /// Allocates with the given extents. The label reads "annulus::<module>::<what>".
  template <class Exec, class... Extents>
  static Owned uninitialized(const Exec& exec, MemoryCategory category, const std::string& label,
                             Extents... extents) {
    return Owned(category,
                 ViewType(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, label), extents...));
  }
  template <class Exec, class... Extents>
  static Owned zeroed(const Exec& exec, MemoryCategory category, const std::string& label,
                      Extents... extents) {
    return Owned(category, ViewType(Kokkos::view_alloc(exec, label), extents...));
  }

  const ViewType& view() const { return view_; }
  const ViewType& operator*() const { return view_; }
  bool allocated() const { return view_.is_allocated(); }

 private:
  Owned(MemoryCategory category, ViewType view)
      : view_(std::move(view)),
        charge_(category, static_cast<std::int64_t>(view_.span() * sizeof(typename ViewType::value_type))) {}
  ViewType view_;
  detail::MemoryCharge charge_;
};

}  // namespace annulus
