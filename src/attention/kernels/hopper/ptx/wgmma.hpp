#pragma once

#include "attention/kernels/hopper/ptx/instructions.hpp"

/// Products of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
///
/// A tile in shared memory is a row of swizzle atoms of 64 columns of 16 bits: rows of 128 bytes, the 16-byte
/// chunk c of row r at index c ^ (r mod 8) (the 128-byte swizzle of TMA), atoms aligned to 1024 bytes. One
/// layout serves both uses of a tile:
/// - K-major (columns are summed over): 8 rows are 1024 bytes (SBO). A step of 16 columns is +32 bytes; after
///   four of them comes the next atom.
/// - MN-major (rows are summed over): 8 rows are 1024 bytes (SBO), and the next 64 columns one atom further
///   (LBO). A step of 16 rows is +2048 bytes.
namespace annulus::attention::hopper {

/// Address of 16-byte chunk `chunk` (of 8) of row `row` of a swizzle atom.
__device__ __forceinline__ std::uint32_t swizzled(std::uint32_t atom, int row, int chunk) {
  return atom + row * atom_row_bytes + ((chunk ^ (row & 7)) << 4);
}

/// The low half of a matrix descriptor: address and LBO. The high half is the same for all (128-byte swizzle,
/// SBO), so that a step through a tile is one addition of 32 bits.
struct MatrixDescriptor {
  std::uint32_t low;

  __device__ __forceinline__ static MatrixDescriptor of(std::uint32_t address, std::uint32_t atom_bytes) {
    return {(atom_bytes >> 4) << 16 | address >> 4};
  }
  __device__ __forceinline__ MatrixDescriptor operator+(std::uint32_t bytes) const {
    return {low + (bytes >> 4)};
  }
  __device__ __forceinline__ std::uint64_t whole() const {
    return std::uint64_t{1u << 30 | 1024 >> 4} << 32 | low;
  }
};

/// Orders accesses to registers: goes before the first product that reads registers written since the last
/// one.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Ends a group of products.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `pending` groups run. fence_operand() has to follow for what the others wrote.
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps the compiler from moving uses of registers across this point: it cannot know that a product still
/// reads or writes them.
template <int count>
__device__ __forceinline__ void fence_operand(float (&r)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int count>
__device__ __forceinline__ void fence_operand(std::uint32_t (&r)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

/// d (64 × columns, fp32) (+)= a (64 × 16) · b (16 × columns), 16-bit factors of type T. Lane l of warp w
/// holds d[4j + 2i + e] of row 16w + l/4 + 8i, column 8j + 2(l mod 4) + e. Four registers of a hold the same
/// places of j = 0, 1 as pairs (i fastest), so that a packed accumulator is a left factor as it stands.
///
/// shared: both factors from shared memory; registers: a from registers. A factor is K-major, or MN-major
/// where it is said to be transposed.
template <class T, int columns>
struct Wgmma;

#define ANNULUS_REGISTERS_0          \
  "%0, %1, %2, %3, %4, %5, %6, %7, " \
  "%8, %9, %10, %11, %12, %13, %14, %15"
#define ANNULUS_REGISTERS_1                  \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define ANNULUS_REGISTERS_2                  \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47"
#define ANNULUS_REGISTERS_3                  \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define ANNULUS_REGISTERS_4                  \
  "%64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79"
#define ANNULUS_REGISTERS_5                  \
  "%80, %81, %82, %83, %84, %85, %86, %87, " \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define ANNULUS_REGISTERS_6                      \
  "%96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111"
#define ANNULUS_REGISTERS_7                          \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define ANNULUS_OUT_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define ANNULUS_OUT_16(i) \
  ANNULUS_OUT_4(i), ANNULUS_OUT_4((i) + 4), ANNULUS_OUT_4((i) + 8), ANNULUS_OUT_4((i) + 12)
#define ANNULUS_OUT_32(i) ANNULUS_OUT_16(i), ANNULUS_OUT_16((i) + 16)
#define ANNULUS_OUT_64(i) ANNULUS_OUT_32(i), ANNULUS_OUT_32((i) + 32)
#define ANNULUS_D64 ANNULUS_REGISTERS_0 ", " ANNULUS_REGISTERS_1
#define ANNULUS_D80 ANNULUS_D64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ANNULUS_D96 ANNULUS_D64 ", " ANNULUS_REGISTERS_2
#define ANNULUS_D128 ANNULUS_D96 ", " ANNULUS_REGISTERS_3
#define ANNULUS_D192 ANNULUS_D128 ", " ANNULUS_REGISTERS_4 ", " ANNULUS_REGISTERS_5
#define ANNULUS_D256 ANNULUS_D192 ", " ANNULUS_REGISTERS_6 ", " ANNULUS_REGISTERS_7
#define ANNULUS_D64_OUT ANNULUS_OUT_32(0)
#define ANNULUS_D80_OUT ANNULUS_OUT_32(0), ANNULUS_OUT_4(32), ANNULUS_OUT_4(36)
#define ANNULUS_D96_OUT ANNULUS_OUT_32(0), ANNULUS_OUT_16(32)
#define ANNULUS_D128_OUT ANNULUS_OUT_64(0)
#define ANNULUS_D192_OUT ANNULUS_OUT_64(0), ANNULUS_OUT_32(64)
#define ANNULUS_D256_OUT ANNULUS_OUT_64(0), ANNULUS_OUT_64(64)

#define ANNULUS_PRODUCT(T, NAME, COLUMNS, D, OUT, A, B, C, E, F, G, H)                                     \
  template <>                                                                                              \
  struct Wgmma<T, COLUMNS> {                                                                               \
    template <bool transpose_a, bool transpose_b>                                                          \
    __device__ static __forceinline__ void shared(float (&d)[COLUMNS / 2], MatrixDescriptor a,             \
                                                  MatrixDescriptor b, bool accumulate) {                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C                                                 \
                   ", 0;\n"                                                                                \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" D "}, %" #A  \
                   ", %" #B ", p, 1, 1, %" #E ", %" #F ";\n}\n"                                            \
                   : OUT                                                                                   \
                   : "l"(a.whole()), "l"(b.whole()), "r"(static_cast<int>(accumulate)),                    \
                     "n"(static_cast<int>(transpose_a)), "n"(static_cast<int>(transpose_b))                \
                   : "memory");                                                                            \
    }                                                                                                      \
    template <bool transpose_b>                                                                            \
    __device__ static __forceinline__ void registers(float (&d)[COLUMNS / 2], const std::uint32_t* a,      \
                                                     MatrixDescriptor b, bool accumulate) {                \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #G                                                 \
                   ", 0;\n"                                                                                \
                   "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" D "}, {%" #A \
                   ", %" #B ", %" #C ", %" #E "}, %" #F ", p, 1, 1, %" #H ";\n}\n"                         \
                   : OUT                                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.whole()),                           \
                     "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(transpose_b))                 \
                   : "memory");                                                                            \
    }                                                                                                      \
  };

ANNULUS_PRODUCT(bfloat16, "bf16", 64, ANNULUS_D64, ANNULUS_D64_OUT, 32, 33, 34, 35, 36, 37, 38)
ANNULUS_PRODUCT(float16, "f16", 64, ANNULUS_D64, ANNULUS_D64_OUT, 32, 33, 34, 35, 36, 37, 38)
ANNULUS_PRODUCT(bfloat16, "bf16", 80, ANNULUS_D80, ANNULUS_D80_OUT, 40, 41, 42, 43, 44, 45, 46)
ANNULUS_PRODUCT(float16, "f16", 80, ANNULUS_D80, ANNULUS_D80_OUT, 40, 41, 42, 43, 44, 45, 46)
ANNULUS_PRODUCT(bfloat16, "bf16", 96, ANNULUS_D96, ANNULUS_D96_OUT, 48, 49, 50, 51, 52, 53, 54)
ANNULUS_PRODUCT(float16, "f16", 96, ANNULUS_D96, ANNULUS_D96_OUT, 48, 49, 50, 51, 52, 53, 54)
ANNULUS_PRODUCT(bfloat16, "bf16", 128, ANNULUS_D128, ANNULUS_D128_OUT, 64, 65, 66, 67, 68, 69, 70)
ANNULUS_PRODUCT(float16, "f16", 128, ANNULUS_D128, ANNULUS_D128_OUT, 64, 65, 66, 67, 68, 69, 70)
ANNULUS_PRODUCT(bfloat16, "bf16", 192, ANNULUS_D192, ANNULUS_D192_OUT, 96, 97, 98, 99, 100, 101, 102)
ANNULUS_PRODUCT(bfloat16, "bf16", 256, ANNULUS_D256, ANNULUS_D256_OUT, 128, 129, 130, 131, 132, 133, 134)
ANNULUS_PRODUCT(float16, "f16", 256, ANNULUS_D256, ANNULUS_D256_OUT, 128, 129, 130, 131, 132, 133, 134)

#undef ANNULUS_PRODUCT
#undef ANNULUS_D64
#undef ANNULUS_D64_OUT
#undef ANNULUS_D80
#undef ANNULUS_D80_OUT
#undef ANNULUS_D96
#undef ANNULUS_D96_OUT
#undef ANNULUS_D128
#undef ANNULUS_D128_OUT
#undef ANNULUS_D192
#undef ANNULUS_D192_OUT
#undef ANNULUS_D256
#undef ANNULUS_D256_OUT
#undef ANNULUS_OUT_4
#undef ANNULUS_OUT_16
#undef ANNULUS_OUT_32
#undef ANNULUS_OUT_64
#undef ANNULUS_REGISTERS_0
#undef ANNULUS_REGISTERS_1
#undef ANNULUS_REGISTERS_2
#undef ANNULUS_REGISTERS_3
#undef ANNULUS_REGISTERS_4
#undef ANNULUS_REGISTERS_5
#undef ANNULUS_REGISTERS_6
#undef ANNULUS_REGISTERS_7

}  // namespace annulus::attention::hopper
