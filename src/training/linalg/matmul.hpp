#pragma once

#include <span>
#include <string>
#include <string_view>

#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

/// GEMMs behind one interface: BLAS on the host, cuBLASLt on NVIDIA's GPUs, hipBLAS on AMD's, and a plain
/// kernel on any other device.
namespace annulus::linalg {

enum class Op : std::uint8_t { none, transpose };

/// What matmul computes: alpha · op_a(A) · op_b(B) + beta · C.
struct Gemm {
  Op op_a = Op::none, op_b = Op::none;
  float alpha = 1.0f, beta = 0.0f;
};

/// C = alpha · op(A) · op(B) + beta · C, row-major, summed in fp32. With beta = 0, C is not read. Rows may be
/// padded (a subview of columns of a wider array), the last index is contiguous. Sizes: op(A) (m, k), op(B)
/// (k, n), C (m, n); an Error names the sizes when they do not fit. Empty ones are fine. C must not
/// overlap A or B. Threads of one process may call it at the same time.
///
/// T is the type of A and B, TC that of C: (float, float), (bfloat16, bfloat16) and (bfloat16, float), for
/// HostExec and the device's space. Factors of type float are multiplied as such: on NVIDIA GPUs too, where
/// TF32 would be faster, and wrong in the fourth digit. A bfloat16 C is rounded once, after beta · C is
/// added.
///
/// Enqueued on `exec`, without allocation or synchronisation from the second GEMM of a shape on. The same
/// GEMM gives the same bits again. What is kept between calls counts as MemoryCategory::workspace and
/// lasts until Kokkos::finalize: 32 MiB for each instance of Kokkos::Cuda; on the host, for bfloat16, at most
/// 12 MiB for each thread that multiplies at a time.
template <class Exec, class T, class TC>
void matmul(const Exec& exec, const Gemm& gemm, const Array2<const T, Exec>& a,
            const Array2<const T, Exec>& b, const Array2<TC, Exec>& c);

/// D = alpha · op(A) · op(B) + beta · C, where C is D itself or does not overlap it. Else as above.
template <class Exec, class T, class TC>
void matmul(const Exec& exec, const Gemm& gemm, const Array2<const T, Exec>& a,
            const Array2<const T, Exec>& b, const Array2<const TC, Exec>& c, const Array2<TC, Exec>& d);

/// Sizes of a product: C (m, n) of op(A) (m, k) and op(B) (k, n).
struct ProductSize {
  std::int64_t m = 0, n = 0, k = 0;
  bool fp32_result = false;  ///< C is fp32 whatever the type of A and B
};

/// Bytes that matmul keeps between products of these sizes, of factors of type `factors`: for a stream of a
/// GPU, or for a thread of the host.
std::int64_t kept_memory(std::span<const ProductSize> products, DType factors, bool on_host);

/// The BLAS of the host and, where that is OpenBLAS, which of its kernels it has chosen for this machine's
/// CPU: "OpenBLAS SkylakeX". Machines with the same answer of OpenBLAS get the same bits from the same
/// GEMM. Another BLAS, that of an installed Kokkos Kernels, is named by its libraries.
std::string host_blas_kernels();

/// What is wrong with these kernels (host_blas_kernels) on a processor with AVX2, with AVX-512 or without,
/// and what to do; empty where nothing is. OpenBLAS takes kernels of 2004 for an x86 processor that is newer
/// than itself.
std::string blas_warning(std::string_view kernels, bool avx2, bool avx512);
/// What is wrong with the kernels of BLAS on this machine, and what to do; empty where nothing is, and where
/// OPENBLAS_CORETYPE has chosen the kernels.
std::string host_blas_warning();

}  // namespace annulus::linalg
