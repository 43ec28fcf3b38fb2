#pragma once

#include <cstddef>

namespace annulus::attention::host_simd {

/// A packed tile of floats: element (row, column) stands at data[row · stride + column].
struct StridedTile {
  float* data;
  int stride;
};
struct ConstStridedTile {
  ConstStridedTile(const float* data, int stride) : data(data), stride(stride) {}
  ConstStridedTile(const StridedTile& tile)
      : data(tile.data), stride(tile.stride) {}  // NOLINT(google-explicit-constructor)
  const float* data;
  int stride;
};

/// Rows of the caller's array: each is contiguous, and they are `stride` elements apart.
template <class T>
struct StridedRows {
  StridedRows(T* data, std::ptrdiff_t stride) : data(data), stride(stride) {}
  T* operator()(int row) const { return data + row * stride; }
  T* data;
  std::ptrdiff_t stride;
};

}  // namespace annulus::attention::host_simd
