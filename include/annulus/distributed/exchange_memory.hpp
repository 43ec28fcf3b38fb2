#pragma once

#include <cstdint>
#include <span>

#include <annulus/distributed/attention.hpp>

namespace annulus::distributed {

/// Bytes of exchange slots and staging buffers (MemoryCategory::communication) that Attention holds on `rank`
/// for these plans. Goes through the steps of the rank. Throws Error as Attention does for plans that cannot
/// be run.
std::int64_t exchange_memory(std::span<const Plans> plans, int rank);

}  // namespace annulus::distributed
