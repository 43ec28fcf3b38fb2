#include "attention/kernels/host_simd/scratch.hpp"

namespace annulus::attention::host_simd {

BufferPool<Kokkos::HostSpace>& scratch_pool() {
  // Ranks that are threads have one each: what a call finds there does not depend on the others' pace.
  thread_local BufferPool<Kokkos::HostSpace> pool(MemoryCategory::workspace,
                                                  "annulus::attention::host_simd::scratch");
  // The pool of the thread that ends Kokkos would live on after it.
  [[maybe_unused]] static const bool hooked =
      (Kokkos::push_finalize_hook([] { scratch_pool().clear(); }), true);
  return pool;
}

}  // namespace annulus::attention::host_simd
