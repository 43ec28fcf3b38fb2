#include "bench/attention/check/verify.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include <annulus/attention/reference.hpp>
#include <annulus/base/error.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::bench {

namespace reference = attention::reference;
using plan::Tensor;

double tolerance(DType type) {
  // The reference starts from the stored values, so rounding them is no error. What is left are the sums,
  // which every kernel keeps in fp32; kernels of the host multiply in fp32, too, whatever the storage type.
  constexpr double sums = 1e-5;
  if (std::is_same_v<Kokkos::DefaultExecutionSpace, HostExec>) return sums;
  // What a kernel of a device may do is round P and dS to the storage type before it multiplies: half a unit
  // in the last place of it, 2⁻⁹ and 2⁻¹², twice.
  switch (type) {
    case DType::bf16:
      return 4e-3;
    case DType::f16:
      return 5e-4;
    default:
      return sums;
  }
}

std::string tolerance_text() {
  return fmt::format(
      "Fails (exit status 1) beyond a relative error, ‖x − reference‖ / ‖reference‖ of out, LSE, dQ, dK or "
      "dV, of {:.0e} for f32, {:.0e} for bf16, {:.0e} for f16",
      tolerance(DType::f32), tolerance(DType::bf16), tolerance(DType::f16));
}

bool CheckResult::passed() const {
  return std::all_of(errors.begin(), errors.end(),
                     [&](const auto& entry) { return entry.second <= tolerance; });
}

namespace {

/// Products that the reference computes: one core does about 10⁹ multiplications and additions a second, 7 a
/// product and head dimension.
double products(const plan::Problem& problem) {
  const PositionMap all = Layout().shard(problem.mask.tokens(), 1, 0);
  return static_cast<double>(problem.mask.pairs(all, all)) * problem.heads * problem.batch * problem.head_dim;
}

}  // namespace

bool is_quickly_checked(const plan::Problem& problem) {
  return products(problem) <= 1e9;
}

void require_checkable(const plan::Problem& problem) {
  constexpr double limit = 1e11;  // 12 minutes
  const double all = products(problem);
  if (all <= limit) return;
  fail(
      "--check reference: the reference would take about {:.0f} minutes for {} tokens: take --check sampled, "
      "which compares some rows of every head, fewer heads, or at most about {} tokens",
      all * 7e-9 / 60, problem.mask.tokens(),
      std::max<std::int64_t>(
          1, static_cast<std::int64_t>(static_cast<double>(problem.mask.tokens()) * std::sqrt(limit / all))));
}

namespace {

reference::Array to_reference(const GlobalTensor& tensor) {
  reference::Array array(tensor.batch, tensor.heads, tensor.tokens, tensor.width);
  std::copy(tensor.values.begin(), tensor.values.end(), array.values.begin());
  return array;
}

double sum_of_squares(const reference::Array& array) {
  return std::inner_product(array.values.begin(), array.values.end(), array.values.begin(), 0.0);
}

/// The size of what cancels in dQ = scale · dS·K and dK = scale · dSᵀ·Q. dS = P ∘ (dP − D) is zero in exact
/// arithmetic where a row has one key, and rounding otherwise: it is measured against scale · D, times the
/// rows of the other factor. Returns the square of a 2-norm over all rows.
double cancelling(const reference::Array& out, const reference::Array& d_out, const reference::Array& factor,
                  double scale) {
  double d_squares = 0;
  for (std::size_t row = 0; row < out.values.size(); row += static_cast<std::size_t>(out.width)) {
    const auto of = [&](const reference::Array& array) {
      return array.values.begin() + static_cast<std::ptrdiff_t>(row);
    };
    const double d = std::inner_product(of(out), of(out) + out.width, of(d_out), 0.0);
    d_squares += d * d;
  }
  const auto rows = static_cast<double>(factor.values.size()) / static_cast<double>(factor.width);
  return scale * scale * d_squares * sum_of_squares(factor) / rows;
}

/// `least`: a lower bound of the square of the norm that the error is divided by.
double relative_error(const GlobalTensor& result, const reference::Array& expected, double least = 0) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double x = result.values[i], y = expected.values[i];
    if (std::isinf(y) && x == y) continue;  // lse of a row without keys
    if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
    error += (x - y) * (x - y);
    norm += y * y;
  }
  if (error == 0) return 0;
  // Against nothing, a root mean square of 10⁻³ counts.
  return std::sqrt(error / std::max({norm, least, 1e-6 * static_cast<double>(expected.values.size())}));
}

}  // namespace

CheckResult compare(const MaskRule& mask, double scale, double tolerance,
                    const std::map<Tensor, GlobalTensor>& tensors) {
  const auto q = to_reference(tensors.at(Tensor::q)), k = to_reference(tensors.at(Tensor::k)),
             v = to_reference(tensors.at(Tensor::v));
  const auto forward = reference::forward(q, k, v, mask, scale);
  CheckResult result;
  result.tolerance = tolerance;
  result.method = "reference";
  result.rows_of_head = mask.tokens;
  const auto add = [&](const char* name, Tensor tensor, const reference::Array& expected, double least = 0) {
    result.errors[name] = relative_error(tensors.at(tensor), expected, least);
  };
  add("out", Tensor::o, forward.out);
  add("lse", Tensor::lse, forward.lse);
  if (!tensors.contains(Tensor::dq)) return result;
  const auto d_out = to_reference(tensors.at(Tensor::d_o));
  const auto backward = reference::backward(
      {.q = q, .k = k, .v = v, .result = forward, .d_out = d_out, .mask = mask, .scale = scale});
  add("dq", Tensor::dq, backward.dq, cancelling(forward.out, d_out, k, scale));
  add("dk", Tensor::dk, backward.dk, cancelling(forward.out, d_out, q, scale));
  add("dv", Tensor::dv, backward.dv);
  return result;
}

}  // namespace annulus::bench
