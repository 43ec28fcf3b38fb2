#include "attention/kernels/host_simd/scratch.hpp"

#include <algorithm>
#include <vector>

namespace annulus::attention::host_simd {

namespace {

/// Free buffers, from small to large. Ranks that are threads have pools of their own: what a call finds does
/// not depend on the others' pace.
std::vector<PooledBuffer>& free_buffers() {
  thread_local std::vector<PooledBuffer> buffers;
  // Buffers of the thread that ends Kokkos would live on after it.
  [[maybe_unused]] static const bool hooked =
      (Kokkos::push_finalize_hook([] { free_buffers().clear(); }), true);
  return buffers;
}

/// The first free buffer of so many bytes or more.
auto first_of(std::size_t bytes) {
  return std::ranges::find_if(free_buffers(), [&](const auto& free) { return free.view().size() >= bytes; });
}

}  // namespace

PooledBuffer take_buffer(std::size_t bytes) {
  std::vector<PooledBuffer>& free = free_buffers();
  const auto best = first_of(bytes);
  if (best == free.end()) {
    if (!free.empty()) free.pop_back();
    return PooledBuffer::uninitialized(HostExec(), MemoryCategory::workspace,
                                       "annulus::attention::host_simd::scratch", bytes);
  }
  PooledBuffer buffer = std::move(*best);
  free.erase(best);
  return buffer;
}

void give_back(PooledBuffer buffer) {
  const auto place = first_of(buffer.view().size() + 1);
  free_buffers().insert(place, std::move(buffer));
}

}  // namespace annulus::attention::host_simd
