#include "training/parameter_sharding/partition.hpp"

#include <algorithm>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

namespace annulus::parameter_sharding {

Partition::Partition(std::span<const model::ParameterUnit> units, int ranks, std::int64_t block)
    : ranks_(ranks) {
  require(ranks > 0 && block > 0, "a partition over {} ranks in blocks of {} elements: both must be positive",
          ranks, block);
  for (const model::ParameterUnit& unit : units) {
    const std::int64_t part = round_up(ceil_divide(unit.size(), std::int64_t{ranks}), block);
    units_.push_back({unit.begin, unit.end, part, shard_size_});
    shard_size_ += part;
  }
}

model::ParameterUnit Partition::part(int unit, int rank) const {
  const Unit& u = at(unit);
  return {std::min(u.begin + rank * u.part_size, u.end), std::min(u.begin + (rank + 1) * u.part_size, u.end)};
}

}  // namespace annulus::parameter_sharding
