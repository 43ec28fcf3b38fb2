#pragma once

#include <cstddef>

#include <annulus/base/dtype.hpp>
#include <annulus/io/hdf5_writer.hpp>

namespace annulus::trace {

/// What rank 0 holds of a tensor at a time, and a message has at most (unless one row has more).
inline constexpr std::size_t slab_bytes = std::size_t{16} << 20;

/// The type that a file has for a tensor: 16-bit floats become f32, which holds them exactly.
DType stored_type(DType type);

/// Writes a part of a tensor whose elements of `type` lie in memory one after the other.
void write_slab(io::DatasetWriter& dataset, const io::Hyperslab& slab, DType type, const std::byte* data);

}  // namespace annulus::trace
