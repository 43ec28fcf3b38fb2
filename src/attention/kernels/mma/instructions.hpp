#pragma once

#include "attention/kernels/gpu/instructions.hpp"

/// The instructions of compute capability 8.0 that C++ has no words for (PTX ISA, "Warp Level Matrix
/// Multiply-Accumulate Instructions" and "Asynchronous copy").
namespace annulus::attention::mma {

using gpu::pack;
using gpu::power_of_two;
using gpu::shared_address;

/// Copies 16 bytes from global to shared memory behind the thread's back; zeros where `valid` is false.
__device__ __forceinline__ void copy_16_bytes(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
}

__device__ __forceinline__ void copy_4_bytes(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0));
}

/// Waits for all copies of this thread.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// Four 8 × 8 matrices of 16-bit elements; lane 8·i + r gives the address of row r of matrix i. Lane 4·r + c
/// receives elements (r, 2c) and (r, 2c + 1) of each.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}

/// Four such matrices, each transposed.
__device__ __forceinline__ void load_transposed_matrices(std::uint32_t (&to)[4], std::uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row_address)
               : "memory");
}

/// c (16 × 8, fp32) += a (16 × 16) · b (16 × 8).
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1);

template <>
__device__ __forceinline__ void multiply_add<bfloat16>(float (&c)[4], const std::uint32_t (&a)[4],
                                                       std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_add<float16>(float (&c)[4], const std::uint32_t (&a)[4],
                                                      std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace annulus::attention::mma
