#pragma once

#include <nlohmann/json.hpp>

#include "bench/attention/local/passes.hpp"

namespace annulus::bench {

/// Compares results with double precision, in two ways.
///
/// - A shorter sequence (`small_tokens`) of one element of the batch and at most two kv heads, with the query
///   heads of each, every row. Terms of the mask that name places of the long sequence (documents, blocks)
///   are left out; causal takes the place of none.
/// - Sampled rows of the whole sequence (check/check.hpp), as all of them take too long.
///
/// `passes` is run once. Returns the errors and the tolerance; throws Error naming the tensor whose error is
/// beyond it.
template <class T>
nlohmann::json check_local(LocalPasses<T>& passes, std::uint64_t seed, attention::Kernel kernel);

/// Compares the steps of a ring with a pass in one piece, every element: attention of two halves of the keys,
/// one merged into the other, O in the inputs' type beside the rounded fp32 O, and gradients that are written
/// or added to, in both orders of sums. results() of `passes` hold the pass in one piece, checked before
/// (check_local); `running` becomes results of the steps.
///
/// Returns ‖x − whole‖ / ‖whole‖ by step and tensor, and the tolerance. Throws Error naming both where one is
/// beyond it.
template <class T>
nlohmann::json check_steps(const LocalPasses<T>& passes, const typename LocalPasses<T>::Results& running);

}  // namespace annulus::bench
