#pragma once

#include <cstdint>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/dtype.hpp>

#include "prediction/measurement/sampling.hpp"

namespace annulus::bench {

/// A linear layer: x (tokens, in), w (out, in), y (tokens, out).
struct LinearShape {
  std::int64_t tokens = 0, out = 0, in = 0;

  /// Floating point operations of one of its products.
  double flops() const {
    return 2.0 * static_cast<double>(tokens) * static_cast<double>(out) * static_cast<double>(in);
  }
};

/// Times of the products of a linear layer: y = x wᵀ, dx = dy w, dw += dyᵀ x.
struct LinearTimes {
  measurement::Sample y, dx, dw;
};

/// Multiplies random numbers on the default execution space, on all ranks at once. `dtype`: of x, w, y and
/// dx, f32 or bf16; dw is fp32. Collective.
LinearTimes time_linear(comm::Communicator& communicator, const measurement::Sampling& sampling, DType dtype,
                        const LinearShape& shape);

}  // namespace annulus::bench
