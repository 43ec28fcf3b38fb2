#pragma once

#include <cstdint>
#include <span>

#include <annulus/attention/executor/attention.hpp>

namespace annulus::executor {

/// Bytes of tables (MemoryCategory::workspace) that the local kernels of `rank` keep in these plans on H100
/// and H200 (attention::forward_tables), the most of any call. `blocks`: none, or lists of which no array is
/// read. Where calls are cut (Cutting) it may be less. Goes through the steps of the rank.
std::int64_t table_memory(std::span<const Plans> plans, int rank, const BlockLists& blocks,
                          const attention::KernelOptions& kernel);

}  // namespace annulus::executor
