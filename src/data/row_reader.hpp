#pragma once

#include <cstdint>
#include <span>

#include <annulus/data/shard.hpp>
#include <annulus/sequence/position_map.hpp>

namespace annulus::data {

/// Reads the ids at the positions `rows`, and those one position later, from one shard. Position p is the
/// shard's token origin + p; all rows lie inside the shard. Where the shard ends behind a row its target is
/// ignored_target: a document never goes on in the next shard.
void read_rows(const TokenShard& shard, std::int64_t origin, const PositionMap& rows,
               std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

}  // namespace annulus::data
