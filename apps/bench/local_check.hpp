#pragma once

#include <nlohmann/json.hpp>

#include "bench/local_passes.hpp"

namespace annulus::bench {

/// Compares results with double precision, in two ways.
///
/// - A shorter sequence (`small_tokens`) with the same heads against the reference, every element. Terms of
/// the mask
///   that name places of the long sequence (documents, blocks) are left out; causal takes the place of none.
/// - Sampled rows of the whole sequence, as the reference is too slow for all: out, lse and dq of some
/// queries of
///   every head, dk and dv of some keys of every kv head, each from its definition. For dk and dv, lse and D
///   of all queries are taken as they are; both are inputs of the backward, and their own samples are
///   compared.
///
/// `passes` is run once. Errors are ‖x − expected‖ / ‖expected‖ (2-norms over all that is compared of a
/// tensor). Returns them and the tolerance; throws Error naming the tensor whose error is beyond it.
template <class T>
nlohmann::json check_local(LocalPasses<T>& passes, std::uint64_t seed, attention::Kernel kernel);

}  // namespace annulus::bench
