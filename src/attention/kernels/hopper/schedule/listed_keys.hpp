#pragma once

#include <annulus/attention/sequence/position_map.hpp>

namespace annulus::attention::hopper {

/// Keys one by one, in the place of their position map (Operands::kv_listed).
struct ListedKeys {
  const std::int64_t* positions = nullptr;  ///< (batch × kv heads, kv rows); null: there are none
  int group = 1;                            ///< heads of queries that read a kv head

  ANNULUS_FUNCTION bool some() const { return positions != nullptr; }
  template <class Input>
  static ListedKeys of(const Input& in) {
    return {in.kv_listed, in.heads / in.kv_heads};
  }
  /// Where the keys of a head of batch × heads of queries stand. `map`: the position map, or how many are
  /// listed.
  ANNULUS_FUNCTION KeyPositions of_head(const PositionMap& map, std::int64_t head) const {
    if (!some()) return {map, nullptr};
    return KeyPositions::of_list(positions + head / group * map.count, map.count);
  }
};

}  // namespace annulus::attention::hopper
