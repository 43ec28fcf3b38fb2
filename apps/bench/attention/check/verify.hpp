#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <annulus/base/dtype.hpp>
#include <annulus/plan/plan.hpp>

#include "bench/attention/check/global.hpp"

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
  std::string method;             ///< "reference" or "sampled"
  std::int64_t rows_of_head = 0;  ///< that were compared
  bool passed() const;
};

/// The whole reference takes seconds, not minutes, for this problem.
bool is_quickly_checked(const plan::Problem& problem);

/// Throws Error when the reference would take unreasonably long for this problem.
void require_checkable(const plan::Problem& problem);

/// Compares with the reference in double precision, of the pairs of `mask`. `tensors` holds q, k, v, out and
/// lse, and with a backward pass do, dq, dk and dv.
CheckResult compare(const MaskRule& mask, double scale, double tolerance,
                    const std::map<plan::Tensor, GlobalTensor>& tensors);

}  // namespace annulus::bench
