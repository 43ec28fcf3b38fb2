#pragma once

#include <cstdint>
#include <span>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/sparsity/options.hpp>

namespace annulus::sparsity {

/// Bytes of tables (MemoryCategory::workspace) that the local kernels of `rank` keep on H100 and H200 where
/// these plans are run with selections (executor::table_memory). Exact where a pattern fixes the number of
/// its columns, and by predicted_share of the columns where masses decide.
std::int64_t table_memory(const PatternOptions& options, std::span<const executor::Plans> plans, int rank,
                          const attention::KernelOptions& kernel);

}  // namespace annulus::sparsity
