#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <cstdint>

namespace annulus::detail {

/// Number of unmasked (query, key) pairs between the rows of `q` and `k`: exact when below `enough`,
/// otherwise some number that is at least `enough`. Costs O(1) for a band (with dilation) between contiguous,
/// zigzag and striped shards, O(stripes) between block-striped ones, this once a document and listed block
/// that the shards share.
std::int64_t count_pairs(const MaskRule& rule, const PositionMap& q, const PositionMap& k,
                         std::int64_t enough);

}  // namespace annulus::detail
