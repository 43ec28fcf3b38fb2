#pragma once

#include <cstdint>
#include <span>

#include <annulus/base/dtype.hpp>

namespace annulus::linalg {

/// Sizes of a product: C (m, n) of op(A) (m, k) and op(B) (k, n).
struct ProductSize {
  std::int64_t m = 0, n = 0, k = 0;
  bool fp32_result = false;  ///< C is fp32 whatever the type of A and B
};

/// Bytes that matmul keeps between products of these sizes, of factors of type `factors`: for a stream of a
/// GPU, or for a thread of the host.
std::int64_t kept_memory(std::span<const ProductSize> products, DType factors, bool on_host);

}  // namespace annulus::linalg
