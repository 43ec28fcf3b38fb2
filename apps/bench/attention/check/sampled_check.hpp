#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <annulus/comm/communicator.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/plan/plan.hpp>

namespace annulus::bench {

/// Inputs and results of one rank on the host; T is the storage type. Without backward pass d_out, dq, dk and
/// dv are empty.
template <class T>
struct HostTensors {
  PositionMap positions;                          ///< of the rows
  Array4<const T, HostExec> q, k, v, d_out;       ///< (batch, heads or kv_heads, rows, head_dim)
  Array4<const float, HostExec> out, dq, dk, dv;  ///< likewise
  Array3<const float, HostExec> lse;              ///< (batch, heads, rows)
};

/// Rows that sampled_errors takes of a head of a sequence with so many tokens.
std::int64_t sampled_rows_of(std::int64_t tokens);

/// Compares some rows of the whole sequence with double precision, for lengths of which the whole reference
/// would take too long: out, lse and dq of the same queries in every head, dk and dv of the keys at their
/// places in every kv head, each from its definition. Every rank sums up what its own rows contribute, so
/// nothing is gathered. For dk and dv, lse and D of all queries are taken as they are; both are inputs of the
/// backward, and their own samples are compared.
///
/// Errors are ‖x − expected‖ / ‖expected‖ (2-norms over all that is compared of a tensor), by the names out,
/// lse, dq, dk, dv. Like the whole comparison (verify.hpp), dq and dk are measured against what cancels in
/// them at least. Collective; every rank gets the same.
template <class T>
std::map<std::string, double> sampled_errors(comm::Communicator& communicator, const plan::Problem& problem,
                                             float scale, const HostTensors<T>& tensors, bool backward);

}  // namespace annulus::bench
