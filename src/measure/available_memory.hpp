#pragma once

#include <cstdint>

namespace annulus::measure {

/// Bytes that this host still has: those of the operating system, or fewer where a control group (of a batch
/// system or a container) has less left.
std::int64_t available_host_memory();

}  // namespace annulus::measure
