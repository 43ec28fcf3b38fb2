#include <annulus/linalg/kept_memory.hpp>

#include <algorithm>

#include "linalg/kept_memory.hpp"

namespace annulus::linalg {

std::int64_t kept_memory(std::span<const ProductSize> products, DType factors, bool on_host) {
  if (!on_host) return static_cast<std::int64_t>(detail::cublaslt_workspace_bytes);
  if (factors == DType::f32) return 0;
  std::int64_t a = 0, b = 0, product = 0;  // fp32 elements of the panels
  const auto part = [](std::int64_t extent) { return std::min(extent, detail::panel_size); };
  for (const ProductSize& size : products) {
    a = std::max(a, part(size.m) * part(size.k));
    b = std::max(b, part(size.k) * part(size.n));
    if (!size.fp32_result) product = std::max(product, part(size.m) * part(size.n));
  }
  return (a + b + product) * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace annulus::linalg
