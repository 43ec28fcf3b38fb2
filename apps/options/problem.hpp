#pragma once

#include <cstdint>
#include <string>

#include <annulus/attention/plan/plan.hpp>

#include "options/shared.hpp"

namespace annulus::options {

/// One problem of attention, as options describe it.
struct ProblemOptions {
  std::int64_t tokens = 4096;  ///< of the whole sequence
  int heads = 8;
  int kv_heads = 0;  ///< 0: as many as heads
  int head_dim = 128;
  int v_head_dim = 0;  ///< of V and O; 0: head_dim
  int batch = 1;
  std::string mask = "causal", dtype = "f32";

  int key_value_heads() const { return kv_heads > 0 ? kv_heads : heads; }
};

/// Declares an option for each of its members.
void add_problem(SharedOptions& options, ProblemOptions& problem);

/// Heads, batch and storage type of the problem; mask, layout and topology are left out. Throws Error naming
/// the option whose value makes no sense.
plan::Problem shape_of(const ProblemOptions& problem);

/// shape_of, and the mask.
plan::Problem problem_of(const ProblemOptions& problem);

/// "131072 tokens, 32 heads (8 kv) of 128, batch 1, bf16, mask causal".
std::string text_of(const plan::Problem& problem);

}  // namespace annulus::options
