#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/host_pairs.hpp"

namespace annulus::bench {

/// The largest relative error ‖x − expected‖ / ‖expected‖ (2-norms over all that is compared of a tensor)
/// that
/// --check lets pass.
double tolerance(DType type, double soft_cap = 0);
std::string tolerance_text();

/// Checking every row takes seconds, not minutes, for this problem.
bool is_quickly_checked(const plan::Problem& problem);

/// Throws Error when checking every row would take unreasonably long for this problem.
void require_checkable(const plan::Problem& problem);

/// Inputs and results of one rank on the host; T is the storage type. Without backward pass d_out, dq, dk and
/// dv are empty.
template <class T>
struct HostTensors {
  PositionMap positions;                          ///< of the rows
  Array4<const T, HostExec> q, k, v, d_out;       ///< (batch, heads or kv_heads, rows, head_dim)
  Array4<const float, HostExec> out, dq, dk, dv;  ///< (batch, heads, rows, head_dim)
  Array3<const float, HostExec> lse;              ///< (batch, heads, rows)
  double soft_cap = 0;                            ///< of the scores; 0: none
  Array1<const T, HostExec> sinks = {};           ///< (heads), or none
  Array1<const float, HostExec> d_sinks = {};     ///< (heads), of these rows
};

/// Relative errors by the names out, lse (rows with keys), dq, dk, dv, with sinks d_sinks; infinite when a
/// value is not finite, or an lse is −inf on one side only.
using Errors = std::map<std::string, double>;

struct CheckResult {
  double tolerance = 0;
  Errors errors;
  std::string method;             ///< "reference" (every row) or "sampled"
  std::int64_t rows_of_head = 0;  ///< that were compared
  bool passed() const;
};

/// Compares with double precision, each tensor from its definition: out, lse and dq of queries in every head,
/// dk and dv of the keys at their places in every kv head; of every row or, for lengths of which these would
/// take too long, of some; d_sinks of all rows. Every rank sums up what its own rows contribute, so nothing
/// is gathered. For dk, dv and d_sinks, lse and D of all queries are taken as they are; both are inputs of
/// the backward, and are compared themselves.
///
/// `pairs`: those that were computed, where they are not all of the problem's mask. In dQ = scale · dS·K and
/// dK = scale · dSᵀ·Q, dS = P ∘ (dP − D) is zero in exact arithmetic where a row has one key, and rounding
/// otherwise: their errors are measured against what cancels at least. Collective; every rank gets the same.
template <class T>
CheckResult check_rows(comm::Communicator& communicator, const plan::Problem& problem,
                       const sparsity::HostPairs* pairs, const HostTensors<T>& tensors, bool every_row,
                       bool backward);

}  // namespace annulus::bench
