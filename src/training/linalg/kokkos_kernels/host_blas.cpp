// The members of KokkosBlas' host BLAS wrapper that matmul.cpp reaches. Kokkos Kernels keeps their
// definitions in its compiled library; here they hand over to CBLAS.
#include <cblas.h>

#include <KokkosBlas_Host_tpl.hpp>
#include <Kokkos_Core.hpp>

namespace KokkosBlas::Impl {
namespace {

CBLAS_TRANSPOSE cblas_op(char op) {
  return op == 'N' || op == 'n' ? CblasNoTrans : CblasTrans;
}

}  // namespace

template <>
void HostBlas<float>::scal(KK_INT n, const float alpha, float* x, KK_INT increment) {
  cblas_sscal(n, alpha, x, increment);
}

template <>
void HostBlas<float>::gemv(const char op, KK_INT m, KK_INT n, const float alpha, const float* a, KK_INT lda,
                           const float* x, KK_INT increment_x, const float beta, float* y,
                           KK_INT increment_y) {
  cblas_sgemv(CblasColMajor, cblas_op(op), m, n, alpha, a, lda, x, increment_x, beta, y, increment_y);
}

template <>
void HostBlas<float>::gemm(const char op_a, const char op_b, KK_INT m, KK_INT n, KK_INT k, const float alpha,
                           const float* a, KK_INT lda, const float* b, KK_INT ldb, const float beta, float* c,
                           KK_INT ldc) {
  cblas_sgemm(CblasColMajor, cblas_op(op_a), cblas_op(op_b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

}  // namespace KokkosBlas::Impl
