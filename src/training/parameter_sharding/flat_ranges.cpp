#include "training/parameter_sharding/flat_ranges.hpp"

#include <annulus/base/division.hpp>

namespace annulus::sharding {

std::vector<optim::ParameterRange> decay_ranges(const model::ParameterMap& map) {
  std::vector<optim::ParameterRange> ranges;
  for (const model::Parameter& p : map.all()) ranges.push_back({p.offset, p.offset + p.size(), p.decay});
  return ranges;
}

UnitBlocks unit_blocks(const model::ParameterMap& map) {
  UnitBlocks blocks;
  for (const model::ParameterUnit& unit : map.units()) {
    blocks.ranges.push_back({unit.begin, unit.end, blocks.count});
    blocks.count += ceil_divide(unit.size(), optim::NormBlocks<HostExec>::size);
  }
  return blocks;
}

}  // namespace annulus::sharding
