#pragma once

#include "training/linalg/matmul.hpp"

namespace annulus::linalg::detail {

/// What matmul is on a device without a library: one sum in fp32 for each element of D. Right on every
/// back-end, fast on none.
template <class Exec, class T, class TC>
void multiply_portably(const Exec& exec, const Gemm& gemm, const Array2<const T, Exec>& a,
                       const Array2<const T, Exec>& b, const Array2<const TC, Exec>& c,
                       const Array2<TC, Exec>& d) {
  const Op op_a = gemm.op_a, op_b = gemm.op_b;
  const float alpha = gemm.alpha, beta = gemm.beta;
  const auto rows = static_cast<std::int64_t>(d.extent(0)), columns = static_cast<std::int64_t>(d.extent(1));
  const auto terms = static_cast<std::int64_t>(op_a == Op::none ? a.extent(1) : a.extent(0));
  // Steps along k in A and B, and to the next row of op(A) or column of op(B).
  const auto stride_a = static_cast<std::int64_t>(a.stride(0)),
             stride_b = static_cast<std::int64_t>(b.stride(0));
  const std::int64_t row_a = op_a == Op::none ? stride_a : 1, step_a = op_a == Op::none ? 1 : stride_a;
  const std::int64_t column_b = op_b == Op::none ? 1 : stride_b, step_b = op_b == Op::none ? stride_b : 1;
  Kokkos::parallel_for(
      "annulus::linalg::multiply_portably",
      Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>, Kokkos::IndexType<std::int64_t>>(exec, {0, 0},
                                                                                    {rows, columns}),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t j) {
        const T* left = a.data() + i * row_a;
        const T* right = b.data() + j * column_b;
        float sum = 0.0f;
        for (std::int64_t l = 0; l < terms; ++l, left += step_a, right += step_b)
          sum += static_cast<float>(*left) * static_cast<float>(*right);
        d(i, j) = TC(alpha * sum + (beta == 0.0f ? 0.0f : beta * static_cast<float>(c(i, j))));
      });
}

}  // namespace annulus::linalg::detail
