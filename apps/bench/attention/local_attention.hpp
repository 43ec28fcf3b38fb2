#pragma once

#include <string>

#include "bench/attention/cases/options.hpp"

namespace annulus::bench {

/// Runs `annulus-bench attention --local`: one case of attention of a whole sequence on the default execution
/// space, without ranks. Checks the results against double precision (check_local says how) before it times
/// anything, prints a summary and writes `json_file` when it is not empty: `git_hash`, `config`, `check`,
/// `execution_space`, `device` (the GPU's model; empty on the host), `threads` of the host,
/// `attention_kernel` (which one ran), `pairs` (unmasked query and key, over heads and batch), and one of two
/// measurements. Throws Error for options that make no sense and when the check fails. Returns the exit
/// status.
///
/// On a GPU, and on the host with `options.steps`: the steps of a ring (local/ring_steps.hpp), each from a
/// pause on and behind other work, as `steps`. Steps are compared with the pass
/// in one piece first (check_steps).
///
/// On the host: rounds of sgemm, forward, sgemm, backward, so that what else the machine does meets all
/// alike. A pass is all that a layer asks for: the forward starts from nothing, the backward forms D and
/// clears its gradients first. sgemm is the product of two 2048 × 2048 matrices by the host's BLAS on as many
/// threads. `sgemm_gflops`, `blas` (linalg::host_blas_kernels; `note` says when the environment chose its
/// kernels), and `forward` and `backward` with
///   `seconds`        the median of the rounds (`seconds_min`, `seconds_max`: their spread),
///   `flops`          4 · pairs · head_dim in the forward, 2.5 times that in the backward,
///   `gflops`         flops / seconds · 10⁻⁹,
///   `share_of_sgemm` gflops over sgemm_gflops.
int run_local_attention(const AttentionOptions& options, const std::string& json_file);

}  // namespace annulus::bench
