#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/attention/sequence/position_map.hpp>

namespace annulus::test {

/// The positions of all rows.
inline std::vector<std::int64_t> positions(const PositionMap& map) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < map.count; ++i) values.push_back(map(i));
  return values;
}

/// A layout whose shards are known; `balanced` as it is cut for documents of a few tokens.
inline Layout cut_layout(const Layout& layout, std::int64_t tokens, int ranks) {
  std::vector<std::int64_t> starts;
  for (std::int64_t start = 0; start < tokens;) {
    starts.push_back(start);
    start += 1 + std::ssize(starts) % 7 * 3;
  }
  const Mask mask = tokens == 0 ? Mask() : Mask::with_documents("causal+documents", tokens, starts);
  return layout.for_mask(mask, ranks);
}
inline Layout cut_layout(const std::string& text, std::int64_t tokens, int ranks) {
  return cut_layout(Layout::parse(text), tokens, ranks);
}

}  // namespace annulus::test
