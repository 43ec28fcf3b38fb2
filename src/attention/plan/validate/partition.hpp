#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sequence/position_map.hpp>

namespace annulus::plan {

/// What is wrong with the shards of all ranks: positions of the sequence that are on several of them, or on
/// none. O(runs of rows · log).
std::vector<std::string> partition_violations(std::int64_t tokens, std::span<const PositionMap> shards);

/// What is wrong with the shards of a problem whose layout has a cut of its own for the sequence
/// (`balanced`); nothing for other layouts.
std::vector<std::string> partition_violations(const Problem& problem);

}  // namespace annulus::plan
