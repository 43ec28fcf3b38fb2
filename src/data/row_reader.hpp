#pragma once

#include <cstdint>
#include <span>

#include <annulus/data/shard.hpp>
#include <annulus/sequence/position_map.hpp>

namespace annulus::data {

/// Reads the ids at the positions `rows`, and those one position later, from one shard. Position p is the
/// shard's token origin + p; all rows lie inside the shard. Where the shard ends behind a row its target is
/// ignored_target: a document never goes on in the next shard.
///
/// Stripes are read as one strided hyperslab, however close together they stand: HDF5 reads pieces of 64 KiB
/// behind the scenes, and picks faster (4 to 10 ns a stripe) than we could by reading the whole range, which
/// loses by up to a factor of 20 as stripes move apart.
void read_rows(const TokenShard& shard, std::int64_t origin, const PositionMap& rows,
               std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

}  // namespace annulus::data
