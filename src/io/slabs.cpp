#include <annulus/io/slabs.hpp>

#include <algorithm>

#include <annulus/base/error.hpp>

namespace annulus::io {

void for_slabs(const Extents& extents, std::uint64_t limit,
               const std::function<void(const Hyperslab&)>& use) {
  require(!extents.empty(), "a scalar cannot be cut into slabs: give it one dimension");
  if (std::find(extents.begin(), extents.end(), 0u) != extents.end()) return;
  // The dimension that is cut: those behind it go whole, those before it one index at a time.
  std::size_t cut = extents.size() - 1;
  std::uint64_t behind = 1;
  while (cut > 0 && behind * extents[cut] <= limit) behind *= extents[cut--];
  const std::uint64_t step = std::max<std::uint64_t>(1, limit / behind);

  Hyperslab slab{Extents(extents.size(), 0), extents};
  std::fill_n(slab.count.begin(), cut, 1u);
  for (;;) {
    for (std::uint64_t begin = 0; begin < extents[cut]; begin += step) {
      slab.start[cut] = begin;
      slab.count[cut] = std::min(step, extents[cut] - begin);
      use(slab);
    }
    std::size_t d = cut;
    while (d > 0 && ++slab.start[d - 1] == extents[d - 1]) slab.start[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace annulus::io
