#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

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

/// From now on device memory is allocated directly, and so can be mapped by other processes of this machine:
/// an MPI that takes pointers to device memory does that, and memory of a pool does not allow it (CUDA's
/// IPC).
void share_device_memory();

namespace detail {

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
  DeviceBlock(DeviceBlock&& other) noexcept;
  DeviceBlock& operator=(DeviceBlock&& other) noexcept;
  ~DeviceBlock() { release(); }

  void* data() const { return data_; }

 private:
  void release() noexcept;

  std::optional<DeviceExec> exec_;  // its stream outlives the block
  std::string label_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool pooled_ = false;
};

}  // namespace detail
}  // namespace annulus
