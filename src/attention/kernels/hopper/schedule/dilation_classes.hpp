#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <optional>

/// Dilation: a query attends to keys of its own dilation class alone, so the rows of one dilation class are
/// an attention of their own, without dilation.
namespace annulus::attention::hopper {

/// The rows of a shard by dilation class: row i of class c is row c + i · count of the shard. Without
/// dilation there is one class with all rows.
struct DilationClasses {
  int count = 1;
  int kv_shift = 0;  ///< queries of class c attend to keys of class (c + kv_shift) mod count
  bool some = true;  ///< false: no query has the dilation class of any key

  ANNULUS_FUNCTION constexpr std::int64_t rows(std::int64_t of_shard, int dilation_class) const {
    return count == 1 ? of_shard : (of_shard - dilation_class + count - 1) / count;  // divisions take long
  }
  /// Rows of the largest class, number 0.
  ANNULUS_FUNCTION constexpr std::int64_t most_rows(std::int64_t of_shard) const { return rows(of_shard, 0); }
  ANNULUS_FUNCTION constexpr std::int64_t row(std::int64_t in_class, int dilation_class) const {
    return dilation_class + in_class * count;
  }
  ANNULUS_FUNCTION constexpr int keys_of(int queries) const { return (queries + kv_shift) % count; }
  ANNULUS_FUNCTION constexpr int queries_of(int keys) const { return (keys + count - kv_shift) % count; }
};

/// What a step from one row to the next adds to the dilation class, if all steps of the shard agree on that.
inline std::optional<std::int64_t> class_step(const PositionMap& map, std::int64_t dilation) {
  if (map.runs != nullptr) return std::nullopt;
  if (map.block == 1) return map.hi % dilation;
  const std::int64_t last = map.first + map.count - 1;
  const bool one_block = map.first / map.block == last / map.block;
  // From the last row of a block to the first row of the next one it is hi − (block − 1) · lo.
  if (!one_block && (map.hi - map.block * map.lo) % dilation != 0) return std::nullopt;
  return map.lo % dilation;
}

/// The dilation classes; nothing where rows of one class are not evenly spaced on both sides, as in zigzag
/// shards with chunks that the dilation does not divide.
inline std::optional<DilationClasses> dilation_classes(const MaskRule& mask, const PositionMap& queries,
                                                       const PositionMap& keys) {
  const std::int64_t dilation = mask.dilation;
  if (dilation <= 1 || queries.empty() || keys.empty()) return DilationClasses{};
  const auto steps = class_step(queries, dilation);
  if (!steps || steps != class_step(keys, dilation)) return std::nullopt;
  const std::int64_t divisor = detail::greatest_common_divisor(dilation, *steps);
  if (dilation / divisor > (1 << 15)) return std::nullopt;
  DilationClasses classes{static_cast<int>(dilation / divisor), 0, true};
  // The class whose first key has the dilation class of query 0.
  for (classes.kv_shift = 0; classes.kv_shift < classes.count; ++classes.kv_shift) {
    if ((keys.front() + classes.kv_shift * *steps - queries.front()) % dilation == 0) return classes;
  }
  classes.kv_shift = 0;
  classes.some = false;
  return classes;
}

}  // namespace annulus::attention::hopper
