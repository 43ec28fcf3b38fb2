#pragma once

#include <cstdint>
#include <span>

#include <annulus/attention/sequence/position_map.hpp>

#include "training/data/shard.hpp"

namespace annulus::data {

/// Reads the ids at the positions `rows`, and those one position later, from one shard. Position p is the
/// shard's token origin + p; all rows lie inside the shard. Where the shard ends behind a row its target is
/// ignored_target: a document never goes on in the next shard. So is the target of a row whose next token
/// does not count (loss_mask).
///
/// Stripes are read as one strided hyperslab, however close together they stand: io reads pieces of 64 KiB
/// behind the scenes, and picks out of these (10 ns a stripe), which reading the whole range could not beat.
void read_rows(const TokenShard& shard, std::int64_t origin, const PositionMap& rows,
               std::span<std::int32_t> tokens, std::span<std::int32_t> targets);

}  // namespace annulus::data
