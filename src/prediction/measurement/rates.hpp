#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "prediction/measurement/sampling.hpp"

namespace annulus::measurement {

/// The three products of a linear layer with a square weight: y = x wᵀ, dx = dy w, dw += dyᵀ x.
struct ProductPoint {
  DType dtype = DType::f32;  ///< of x, w, y and dx; dw is fp32
  std::int64_t width = 0;    ///< w is (width, width)
  std::int64_t tokens = 0;   ///< x, y, dx and dy are (tokens, width)
  Sample seconds;            ///< of all three, of the slowest rank

  double flops() const {
    return 6.0 * static_cast<double>(tokens) * static_cast<double>(width) * static_cast<double>(width);
  }
  double rate() const { return flops() / seconds.median; }  ///< FLOP/s
};

struct ProductMeasurement {
  std::vector<ProductPoint> points;
  std::vector<std::string> notes;  ///< what was left out, and why
};

/// Bytes per second, as simulator::MemoryRates has them; nothing: not measured.
struct MemoryMeasurement {
  std::optional<double> device, host_copy, host;
};

}  // namespace annulus::measurement
