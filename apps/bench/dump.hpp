#pragma once

#include <filesystem>
#include <map>

#include <annulus/plan/plan.hpp>

#include "bench/global.hpp"
#include "bench/options.hpp"

namespace annulus::bench {

/// Writes the tensors by the names of plan::name_of, except that o is "out", in fp32 and global token order:
/// (batch, heads, tokens, head_dim), lse without the last. The root group's attributes are the configuration.
/// Atomically.
void write_dump(const std::filesystem::path& path, const AttentionOptions& options,
                const plan::Problem& problem, double scale,
                const std::map<plan::Tensor, GlobalTensor>& tensors);

}  // namespace annulus::bench
