#pragma once

#include <map>
#include <string>

#include <annulus/base/dtype.hpp>
#include <annulus/plan/plan.hpp>

#include "bench/global.hpp"

namespace annulus::bench {

/// The largest relative error ‖x − reference‖ / ‖reference‖ (2-norms over a whole tensor) that --check lets
/// pass.
double tolerance(DType type);
std::string tolerance_text();

struct CheckResult {
  double tolerance = 0;
  /// Relative errors of out, lse (rows with keys), dq, dk, dv, by name; infinite when a value is not finite,
  /// or an lse is −inf on one side only.
  std::map<std::string, double> errors;
  bool passed() const;
};

/// Throws Error when the reference would take unreasonably long for this problem.
void require_checkable(const plan::Problem& problem);

/// Compares with the reference in double precision. `tensors` holds q, k, v, do, out, lse, dq, dk, dv.
CheckResult compare(const plan::Problem& problem, double scale, double tolerance,
                    const std::map<plan::Tensor, GlobalTensor>& tensors);

}  // namespace annulus::bench
