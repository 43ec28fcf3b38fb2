#pragma once

#include <cstddef>
#include <cstdint>

/// Sizes of what products keep from call to call.
namespace annulus::linalg::detail {

/// Rows, columns and terms of a panel of the host: large enough that widening costs little beside the
/// product.
inline constexpr std::int64_t panel_size = 1024;

/// Of cuBLASLt, for each stream: what NVIDIA recommends for Hopper.
inline constexpr std::size_t cublaslt_workspace_bytes = std::size_t{32} << 20;

}  // namespace annulus::linalg::detail
