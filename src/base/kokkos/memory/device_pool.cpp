#include "base/kokkos/memory/memory.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <string_view>

#include <annulus/base/error.hpp>

#include "base/kokkos/gpu_runtime.hpp"

namespace annulus {

namespace {

std::atomic<bool> shared = false;

// What a back-end has to bring: bytes of a stream, nullptr where there are none; the way back; the device's
// numbers.
#ifdef ANNULUS_GPU_RUNTIME

constexpr const char* switch_name = "ANNULUS_DEVICE_POOL";

bool wanted() {
  const char* text = std::getenv(switch_name);
  const std::string_view value = text == nullptr ? "on" : text;
  require(value == "on" || value == "off" || value.empty(), "{}='{}': give on or off", switch_name, value);
  return value != "off";
}

void check(GpuError code, const char* what) {
  require(code == ANNULUS_GPU(Success), "the GPU failed: {}: {}", what, ANNULUS_GPU(GetErrorString)(code));
}

/// The pool of this process' device; nullptr: allocate directly.
ANNULUS_GPU(MemPool_t) make_pool(int device) {
  int supported = 0;
  check(ANNULUS_GPU(DeviceGetAttribute)(&supported, ANNULUS_GPU_HAS_MEMORY_POOLS, device),
        "asking for memory pools");
  if (supported == 0 || !wanted()) return nullptr;
  ANNULUS_GPU(MemPoolProps) properties{};
  properties.allocType = ANNULUS_GPU(MemAllocationTypePinned);
  properties.location.type = ANNULUS_GPU(MemLocationTypeDevice);
  properties.location.id = device;
  ANNULUS_GPU(MemPool_t) pool = nullptr;
  check(ANNULUS_GPU(MemPoolCreate)(&pool, &properties), "making the memory pool");
  // Memory that is free stays in the pool when the host waits for the device: the next step needs it again.
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(ANNULUS_GPU(MemPoolSetAttribute)(pool, ANNULUS_GPU(MemPoolAttrReleaseThreshold), &keep),
        "setting up the memory pool");
  return pool;
}

/// A process has one device: Kokkos chose it.
ANNULUS_GPU(MemPool_t) the_pool() {
  static const ANNULUS_GPU(MemPool_t) pool = make_pool(gpu_device());
  return pool;
}

void* try_allocate(const DeviceExec& exec, std::size_t bytes, bool pooled) {
  void* data = nullptr;
  check(ANNULUS_GPU(SetDevice)(gpu_device(exec)), "choosing the device");  // a thread starts with device 0
  const auto code = pooled ? ANNULUS_GPU(MallocFromPoolAsync)(&data, bytes, the_pool(), gpu_stream(exec))
                           : ANNULUS_GPU(Malloc)(&data, bytes);
  if (code == ANNULUS_GPU(ErrorMemoryAllocation)) {
    static_cast<void>(ANNULUS_GPU(GetLastError)());  // it is told here, not by the next call
    return nullptr;
  }
  check(code, "allocating memory");
  return data;
}

// Kokkos does not know of this memory; its tools shall.
template <class Report>
void tell_tools(Report report, const std::string& label, void* data, std::size_t bytes) {
  if (Kokkos::Profiling::profileLibraryLoaded())
    report(Kokkos::Profiling::make_space_handle(DeviceExec::memory_space::name()), label, data, bytes);
}

bool takes_from_pool() {
  return the_pool() != nullptr && !shared;
}

void* allocate(const DeviceExec& exec, const std::string& label, std::size_t bytes, bool pooled) {
  void* data = try_allocate(exec, bytes, pooled);
  if (data == nullptr && the_pool() != nullptr) {
    trim_device_pool();  // what other streams gave back may still wait for their work, and be cut too small
    data = try_allocate(exec, bytes, pooled);
  }
  if (data != nullptr) tell_tools(Kokkos::Profiling::allocateData, label, data, bytes);
  return data;
}

// Errors of earlier kernels come back here, too: the next call that may throw tells them.
void give_back(const DeviceExec& exec, const std::string& label, void* data, std::size_t bytes,
               bool pooled) noexcept {
  tell_tools(Kokkos::Profiling::deallocateData, label, data, bytes);
  static_cast<void>(ANNULUS_GPU(SetDevice)(gpu_device(exec)));
  if (pooled) {
    static_cast<void>(ANNULUS_GPU(FreeAsync)(data, gpu_stream(exec)));
  } else {
    static_cast<void>(ANNULUS_GPU(Free)(data));
  }
}

#else

bool takes_from_pool() {
  return false;
}

void* allocate(const DeviceExec&, const std::string& label, std::size_t bytes, bool) {
  try {
    return Kokkos::kokkos_malloc<DeviceExec::memory_space>(label, bytes);
  } catch (const std::runtime_error&) {  // Kokkos has no type of its own for it
    return nullptr;
  }
}

void give_back(const DeviceExec& exec, const std::string&, void* data, std::size_t, bool) noexcept {
  exec.fence("annulus::core: memory is no longer used");
  Kokkos::kokkos_free<DeviceExec::memory_space>(data);
}

#endif

}  // namespace

DeviceMemory device_memory() {
  DeviceMemory memory;
#ifdef ANNULUS_GPU_RUNTIME
  check(ANNULUS_GPU(SetDevice)(gpu_device()), "choosing the device");
  std::size_t free = 0, total = 0;
  check(ANNULUS_GPU(MemGetInfo)(&free, &total), "asking for its memory");
  memory.free = static_cast<std::int64_t>(free);
  memory.total = static_cast<std::int64_t>(total);
  if (the_pool() != nullptr) {
    std::uint64_t pooled = 0;
    check(ANNULUS_GPU(MemPoolGetAttribute)(the_pool(), ANNULUS_GPU(MemPoolAttrReservedMemCurrent), &pooled),
          "asking for the size of the memory pool");
    memory.pooled = static_cast<std::int64_t>(pooled);
  }
#endif
  return memory;
}

std::int64_t library_memory() {
  const DeviceMemory memory = device_memory();
  // Without a pool the arrays are taken from the device one by one.
  return memory.total - memory.free - std::max(memory.pooled, memory_use(MemoryKind::device).total_current);
}

void trim_device_pool() {
#ifdef ANNULUS_GPU_RUNTIME
  check(ANNULUS_GPU(SetDevice)(gpu_device()), "choosing the device");
  if (the_pool() == nullptr) return;
  check(ANNULUS_GPU(DeviceSynchronize)(), "waiting for memory");
  check(ANNULUS_GPU(MemPoolTrimTo)(the_pool(), 0), "trimming the memory pool");
#endif
}

void share_device_memory() {
  shared = true;
}

namespace detail {

DeviceBlock::DeviceBlock(const DeviceExec& exec, const MemoryRequest& request) {
  if (request.bytes == 0) return;
  const bool pooled = takes_from_pool();
  data_ = {allocate(exec, request.label, request.bytes, pooled),
           {exec, request.label, request.bytes, pooled}};
  if (data_ != nullptr) return;
  const DeviceMemory memory = device_memory();
  out_of_memory(request, memory.free, memory.total);
}

void GiveBack::operator()(void* data) const noexcept {
  give_back(*exec, label, data, bytes, pooled);
}

}  // namespace detail
}  // namespace annulus
