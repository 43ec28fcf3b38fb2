#pragma once

#include <cuda.h>

#include "attention/kernels/gpu/instructions.hpp"
#include "attention/kernels/hopper/ptx/warpgroups.hpp"

/// The instructions of compute capability 9.0a that C++ has no words for, matrix products apart
/// (ptx/wgmma.hpp). PTX ISA: "mbarrier", "Asynchronous copy", "Parallel Synchronization and Communication
/// Instructions".
namespace annulus::attention::hopper {

// --- mbarrier: arrivals and bytes that a phase waits for --------------------------------------------------

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to TMA; a __syncthreads has to follow for the other threads.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives, and makes the phase wait for `bytes` of copies as well.
__device__ __forceinline__ void arrive_expecting(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// Returns when the phase of this parity has completed. A fresh barrier is in phase 0: waiting for parity 1
/// returns at once, which is what the producer wants of an empty buffer.
__device__ __forceinline__ void wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// --- Loads and stores by TMA ------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// A box of a (batch, heads, classes, rows, columns) tensor to shared memory; rows and columns past the end
/// become zeros.
__device__ __forceinline__ void load_box(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier,
                                         int column, int dilation_class, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6, %7}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(dilation_class), "r"(head), "r"(batch)
      : "memory");
}

/// `bytes` that follow each other, a multiple of 16 as both addresses are, to shared memory.
__device__ __forceinline__ void load_bytes(std::uint32_t to, const void* from, int bytes,
                                           std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/// A box of shared memory to a tensor, or added to it, fp32; rows and columns past the end are left out.
__device__ __forceinline__ void store_box(std::uint32_t from, const CUtensorMap& map, int column,
                                          int dilation_class, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(row), "r"(dilation_class), "r"(head), "r"(batch)
      : "memory");
}
__device__ __forceinline__ void add_box(std::uint32_t from, const CUtensorMap& map, int column,
                                        int dilation_class, int row, int head, int batch) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
          "l"(&map),
      "r"(from), "r"(column), "r"(row), "r"(dilation_class), "r"(head), "r"(batch)
      : "memory");
}
/// Ends a group of such stores of this thread.
__device__ __forceinline__ void stores_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until shared memory has been read for all groups.
__device__ __forceinline__ void stores_wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until device memory has been written for all groups.
__device__ __forceinline__ void stores_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// --- Device memory that other blocks write meanwhile ------------------------------------------------------

/// Two additions to 8 aligned bytes; nothing waits for them.
__device__ __forceinline__ void add_to(float* to, float a, float b) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
}

__device__ __forceinline__ int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// Whoever acquires the value sees what this thread, and those it has synchronised with, wrote before.
__device__ __forceinline__ void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// --- Fences, named barriers, registers --------------------------------------------------------------------

/// Makes ordinary stores to shared memory visible to wgmma and to TMA, behind the barrier that follows.
__device__ __forceinline__ void fence_shared_for_engines() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Orders what this thread has seen of device memory before what it asks TMA for from here on.
__device__ __forceinline__ void fence_device_for_engines() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Named barriers of a block, by what meets there. Barrier 0 is that of __syncthreads.
enum class NamedBarrier : int {
  /// Forward: one for each consumer, whose products are next.
  tensor_cores = 1,
  /// Backward, where consumers do not take turns at dQ: the dS of all are written.
  dq_operands = tensor_cores + most_consumers,
  /// Backward for fine block lists: both consumers have given or taken sums.
  sum_exchange,
  count
};
static_assert(static_cast<int>(NamedBarrier::count) <= 16, "a block has 16 named barriers");

/// `index`: of barriers that follow each other.
__device__ __forceinline__ void bar_sync(NamedBarrier barrier, int threads, int index = 0) {
  asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(barrier) + index), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(NamedBarrier barrier, int threads, int index = 0) {
  asm volatile("bar.arrive %0, %1;" ::"r"(static_cast<int>(barrier) + index), "r"(threads) : "memory");
}

template <int count>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// --- Shared memory by address -----------------------------------------------------------------------------

__device__ __forceinline__ float2 load_shared_pair(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(pair.x), "f"(pair.y) : "memory");
}
__device__ __forceinline__ int load_shared_int(std::uint32_t address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, int2 v) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ int4 load_shared_int4(std::uint32_t address) {
  int4 v;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_shared(std::uint32_t address, int4 v) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

/// Stores four 8 × 8 matrices of 16-bit elements; lane l gives the address of row l mod 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(std::uint32_t address, const std::uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// Loads four such matrices; lane l gives the address of row l mod 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t* r, std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// --- Small arithmetic -------------------------------------------------------------------------------------

/// Sum and maximum over the four lanes that share a row of an accumulator.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/// A number that all lanes of the warp agree on, which the compiler may then keep in a uniform register.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}

}  // namespace annulus::attention::hopper
