#pragma once

#include <Kokkos_Core.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <annulus/base/kokkos/memory_use.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus {

/// The device's memory as its driver sees it, in bytes. All 0 in a build without a device.
struct DeviceMemory {
  std::int64_t free = 0, total = 0;  ///< of the device, whoever uses it
  /// Taken from the device by this process' pool, in use or ready for reuse; 0 without a pool.
  std::int64_t pooled = 0;
};
DeviceMemory device_memory();
/// What of the device is taken by others than arrays of Annulus and the pool they lie in, in bytes: by CUDA,
/// NCCL and cuBLAS for this process, and by other processes.
std::int64_t library_memory();

/// Gives what no array uses back to the device, once all work that is under way has ended.
void trim_device_pool();

/// Allocates device memory directly from now on, so that other processes of this machine can map it: an MPI
/// that takes pointers to device memory does that, and memory of a pool does not allow it (CUDA's IPC).
void share_device_memory();

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
      : kind_(other.kind_), category_(other.category_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryCharge& operator=(MemoryCharge other) noexcept {  // which releases what was here
    std::swap(kind_, other.kind_);
    std::swap(category_, other.category_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryCharge() {
    if (bytes_ != 0) memory_released(kind_, category_, bytes_);
  }

 private:
  MemoryKind kind_ = MemoryKind::host;
  MemoryCategory category_ = MemoryCategory::workspace;
  std::int64_t bytes_ = 0;
};

/// Gives device memory back to where it came from.
struct GiveBack {
  std::optional<DeviceExec> exec = {};  // its stream outlives the block
  std::string label = {};
  std::size_t bytes = 0;
  bool pooled = false;
  void operator()(void* data) const noexcept;
};

/// Device memory out of a pool that is ordered by streams (cudaMallocFromPoolAsync): neither taking it nor
/// giving it back waits for the device or asks its driver for memory once the pool has grown. Work that is
/// enqueued to `exec` may use it at once; at the end it goes back behind the work of `exec`, so work of other
/// streams must be ordered before that. Throws Error when the device's memory does not suffice.
/// share_device_memory, ANNULUS_DEVICE_POOL=off, a device without pools and a back-end for which none is
/// written allocate and free directly instead, which waits for the device.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(const DeviceExec& exec, const MemoryRequest& request);

  void* data() const { return data_.get(); }

 private:
  std::unique_ptr<void, GiveBack> data_;
};

/// Enqueues the writing of zeros, bytes whatever the elements are: one kernel serves all types and ranks of
/// arrays.
template <class Exec>
void zero_bytes(const Exec& exec, void* data, std::size_t bytes);

}  // namespace detail

/// A View whose bytes count in the memory report for as long as this object lives. Move-only owner; hand
/// `view()` to kernels. ViewType is a managed Kokkos View; the contents are not initialized unless `zero` is
/// asked for.
///
/// Device memory comes out of a pool ordered by `exec` (detail::DeviceBlock): other streams wait for `exec`
/// before they use it, and `exec` for them before it goes back. A copy of the view does not keep it alive.
template <class ViewType>
class Owned {
  using Value = typename ViewType::value_type;

 public:
  /// Where it lies.
  static constexpr MemoryKind kind =
      has_device && std::is_same_v<typename ViewType::memory_space, DeviceExec::memory_space>
          ? MemoryKind::device
          : MemoryKind::host;

  Owned() = default;
  Owned(Owned&& other) noexcept
      : view_(std::exchange(other.view_, ViewType())),
        block_(std::move(other.block_)),
        charge_(std::move(other.charge_)) {}
  Owned& operator=(Owned&& other) noexcept {
    view_ = std::exchange(other.view_, ViewType());
    block_ = std::move(other.block_);
    charge_ = std::move(other.charge_);
    return *this;
  }

  /// Allocates with the given extents. The label reads "annulus::<module>::<what>". Throws Error when the
  /// memory does not suffice.
  template <class Exec, class... Extents>
  static Owned uninitialized(const Exec& exec, MemoryCategory category, const std::string& label,
                             Extents... extents) {
    Owned owned = uncounted(exec, category, label, extents...);
    const std::size_t bytes = ViewType::required_allocation_size(static_cast<std::size_t>(extents)...);
    owned.charge_ = detail::MemoryCharge(kind, category, static_cast<std::int64_t>(bytes));
    return owned;
  }
  /// Allocates memory whose purpose changes: the caller counts it (detail::memory_allocated). The category
  /// is for messages.
  template <class Exec, class... Extents>
  static Owned uncounted(const Exec& exec, MemoryCategory category, const std::string& label,
                         Extents... extents) {
    Owned owned;
    const std::size_t bytes = ViewType::required_allocation_size(static_cast<std::size_t>(extents)...);
    const detail::MemoryRequest request{kind, category, label, bytes};
    if constexpr (kind == MemoryKind::device) {
      static_assert(std::is_same_v<Exec, DeviceExec>, "memory of a device belongs to a stream of it");
      owned.block_ = detail::DeviceBlock(exec, request);
      owned.view_ = ViewType(static_cast<Value*>(owned.block_.data()), extents...);
    } else {
      try {
        owned.view_ = ViewType(Kokkos::view_alloc(exec, Kokkos::WithoutInitializing, label), extents...);
      } catch (const std::runtime_error&) {  // Kokkos has no type of its own for it
        detail::out_of_memory(request, available_host_memory(), 0);
      }
    }
    return owned;
  }
  template <class Exec, class... Extents>
  static Owned zeroed(const Exec& exec, MemoryCategory category, const std::string& label,
                      Extents... extents) {
    Owned owned = uninitialized(exec, category, label, extents...);
    static_assert(std::is_trivially_copyable_v<Value> &&
                  std::is_same_v<typename ViewType::memory_space, typename Exec::memory_space>);
    detail::zero_bytes(exec, owned.view_.data(), owned.view_.span() * sizeof(Value));
    return owned;
  }

  const ViewType& view() const { return view_; }
  const ViewType& operator*() const { return view_; }
  bool allocated() const { return view_.data() != nullptr; }

 private:
  struct Nothing {};
  ViewType view_;
  [[no_unique_address]] std::conditional_t<kind == MemoryKind::device, detail::DeviceBlock, Nothing> block_;
  detail::MemoryCharge charge_;
};

}  // namespace annulus
