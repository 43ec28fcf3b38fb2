#include "training/parameter_sharding/flat_ranges.hpp"

#include <algorithm>

#include <annulus/base/division.hpp>

namespace annulus::parameter_sharding {

bool Updates::decays(const model::Parameter& parameter) const {
  return std::ranges::find(decay, parameter.kind) != decay.end();
}

std::vector<optimizer::ParameterRange> update_ranges(const model::ParameterMap& map, const Updates& updates) {
  std::vector<optimizer::ParameterRange> ranges;
  for (const model::Parameter& p : map.all())
    ranges.push_back({p.offset, p.offset + p.size(), updates.decays(p), !updates.by_muon(p)});
  return ranges;
}

UnitBlocks unit_blocks(const model::ParameterMap& map) {
  UnitBlocks blocks;
  for (const model::ParameterUnit& unit : map.units()) {
    blocks.ranges.push_back({unit.begin, unit.end, blocks.count});
    blocks.count += ceil_divide(unit.size(), optimizer::NormBlocks<HostExec>::size);
  }
  return blocks;
}

}  // namespace annulus::parameter_sharding
