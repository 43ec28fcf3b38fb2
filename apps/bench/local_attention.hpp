#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/options.hpp"

namespace annulus::bench {

/// One case of attention of a whole sequence on the host, without ranks: tokens, heads, kv_heads, head_dim,
/// batch, mask, dtype, kernel, seed and repetitions of `options`. Checks the results against double precision
/// (check_local says how), then times it in rounds of sgemm, forward, sgemm, backward, so that what else the
/// machine does meets all alike. A pass is all that a layer asks for: the forward starts from nothing, the
/// backward forms D and clears its gradients first.
///
/// sgemm is OpenBLAS' product of two 2048 × 2048 matrices on as many threads. Returns, beside configuration
/// and check, `sgemm_gflops`, `openblas_core` (which kernels OpenBLAS chose; `note` says when the environment
/// chose them), and `forward` and `backward` with
///   `seconds`        the median of the rounds (`seconds_min`, `seconds_max`: their spread),
///   `flops`          4 · pairs · head_dim in the forward, pairs the unmasked (query, key, head); 2.5 times
///   that in
///                    the backward,
///   `gflops`         flops / seconds · 10⁻⁹,
///   `share_of_sgemm` gflops over sgemm_gflops.
/// Throws Error for options that make no sense and when the check fails.
nlohmann::json measure_local_attention(const AttentionOptions& options);

/// `annulus-bench attention --local`: measures, prints a summary and writes --json when
/// `json_file` is not empty. Returns the exit status.
int run_local_attention(const AttentionOptions& options, const std::string& json_file);

}  // namespace annulus::bench
