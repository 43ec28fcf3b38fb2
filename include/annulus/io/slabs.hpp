#pragma once

#include <cstdint>
#include <functional>

#include <annulus/io/hdf5.hpp>

namespace annulus::io {

/// Cuts an array of these extents (one dimension at least) into parts that lie in one stretch in row-major
/// order and hold `limit` elements at most, but one at least, and calls `use` with one after the other: how a
/// dataset is read or written that memory need not hold.
void for_slabs(const Extents& extents, std::uint64_t limit,
               const std::function<void(const Hyperslab& slab)>& use);

}  // namespace annulus::io
