#pragma once

#include <algorithm>
#include <cstddef>

#include "attention/kernels/host_simd/tile.hpp"
#include "attention/kernels/host_simd/tuning.hpp"

/// Copies between the caller's arrays and tiles of floats.
namespace annulus::attention::host_simd {

/// to(row, c) = from(row)[c] for `rows` rows of `columns`; padding columns up to whole vectors and `padding`
/// rows behind are zero.
template <class RowOf>
void pack_rows(const RowOf& from, int rows, int columns, int padding, StridedTile to) {
  const int padded = round_up(columns, width);
  for (int row = 0; row < rows; ++row, to.data += to.stride) {
    const auto* const values = from(row);
    for (int c = 0; c < columns; ++c) to.data[c] = static_cast<float>(values[c]);
    for (int c = columns; c < padded; ++c) to.data[c] = 0.0f;
  }
  for (int row = 0; row < padding; ++row, to.data += to.stride) std::fill_n(to.data, padded, 0.0f);
}

/// to(c, lane) = factor · from(lane)[c] for `lanes` ≤ panel rows of `columns`, at stride `panel`; the other
/// lanes are zero.
template <class RowOf>
void pack_panel(const RowOf& from, int lanes, int columns, float factor, float* to) {
  for (int lane = 0; lane < lanes; ++lane) {
    const auto* const values = from(lane);
    for (int c = 0; c < columns; ++c) to[c * panel + lane] = factor * static_cast<float>(values[c]);
  }
  if (lanes < panel) {
    for (int c = 0; c < columns; ++c) std::fill(to + c * panel + lanes, to + (c + 1) * panel, 0.0f);
  }
}

/// to(lane, c) += factor · from(c, lane): the way back of a gradient panel.
inline void add_panel(const float* from, int lanes, int columns, float factor, float* to,
                      std::ptrdiff_t stride) {
  for (int lane = 0; lane < lanes; ++lane, to += stride) {
    for (int c = 0; c < columns; ++c) to[c] += factor * from[c * panel + lane];
  }
}

/// to(row)[c] += factor · from(row, c).
template <class RowOf>
void add_rows(ConstStridedTile from, int rows, int columns, float factor, const RowOf& to) {
  for (int row = 0; row < rows; ++row, from.data += from.stride) {
    float* const sums = to(row);
    for (int c = 0; c < columns; ++c) sums[c] += factor * from.data[c];
  }
}

/// Hands out pieces of a scratch buffer, each on a cache line.
class Carve {
 public:
  explicit Carve(float* at) : at_(at) {}
  float* take(int floats) {
    float* piece = at_ == nullptr ? nullptr : at_ + used_;
    used_ += round_up(floats, 16);
    return piece;
  }
  std::size_t bytes() const { return sizeof(float) * static_cast<std::size_t>(used_); }

 private:
  float* at_;
  int used_ = 0;
};

}  // namespace annulus::attention::host_simd
