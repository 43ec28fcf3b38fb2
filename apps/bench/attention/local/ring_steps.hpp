#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/attention/cases/options.hpp"
#include "bench/attention/local/passes.hpp"

namespace annulus::bench {

/// Calls of the local kernel as the steps of a ring make them.
///
/// - `forward_first`: O and LSE are written; `forward_merging`: merged into running ones. Both fp32.
/// - `forward_finished`: the only step of a pass, which starts and finishes: O is written in the inputs'
/// type, LSE in fp32.
/// - `backward_running`: the kernel alone, which adds to running fp32 dQ, dK and dV.
/// - `backward_finished`: from the inputs to finished fp32 dQ, dK and dV: D, and the kernel, which writes
/// them.
/// - both with `_any_order`: the same with KernelOptions::deterministic = false.
const std::vector<std::string>& ring_step_names();

/// Times the steps that `options` name (all without a name, or by the name "all"), those of the kernels that
/// have no order of their own left out. Returns by step `flops` (4 · pairs · head_dim forward, 2.5 times that
/// backward; `pairs`: unmasked, over heads and batch), `burst` (a call that follows a pause: `seconds`,
/// `seconds_min`, `seconds_max`, `tflops` of the median) and `sustained` (calls behind and among others like
/// them: `seconds`, their mean, `calls`, `tflops`). `passes` hold results of a forward; `running` are results
/// of any values.
template <class T>
nlohmann::json measure_ring_steps(const LocalPasses<T>& passes,
                                  const typename LocalPasses<T>::Results& running,
                                  const AttentionOptions& options, double pairs);

}  // namespace annulus::bench
