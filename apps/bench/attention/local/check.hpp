#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/attention/local/passes.hpp"

namespace annulus::bench {

/// Compares results with double precision, in two ways.
///
/// - A shorter sequence (`small_tokens`) of one element of the batch and at most two kv heads, with the query
///   heads of each, against the reference, every element. Terms of the mask that name places of the long
///   sequence (documents, blocks) are left out; causal takes the place of none.
/// - Sampled rows of the whole sequence (check/sampled_check.hpp), as the reference is too slow for all.
///
/// `passes` is run once. Errors are ‖x − expected‖ / ‖expected‖ (2-norms over all that is compared of a
/// tensor). Returns them and the tolerance; throws Error naming the tensor whose error is beyond it.
template <class T>
nlohmann::json check_local(LocalPasses<T>& passes, std::uint64_t seed, attention::Kernel kernel);

/// Throws Error naming the tensor and `what` it is of, where a relative error is beyond `limit`.
void require_small(const std::map<std::string, double>& errors, const std::string& what, double limit);

}  // namespace annulus::bench
