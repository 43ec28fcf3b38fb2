#pragma once

#include <numeric>
#include <utility>
#include <vector>

namespace annulus::plan {

/// Hops first … last of a ring.
struct Hops {
  int first = 0, last = -1;
};

/// Whether some owner of a shard has anything at each hop 0 … size − 1. `any(owner, hops)` says so for
/// several hops at once; the search halves ranges of hops, but only where an owner can still add to what has
/// been found. That takes O(size + owners · log size) questions where the owners agree, as they nearly do on
/// all layouts.
template <class Any>
std::vector<bool> hops_with_any(int owners, int size, const Any& any) {
  const auto index = [](int hop) { return static_cast<std::size_t>(hop); };
  std::vector<bool> found(index(size));
  std::vector<int> next(index(size) + 1);  // from each hop on, all before this one have been found
  std::iota(next.begin(), next.end(), 0);
  const auto first_missing = [&](int hop) {
    int missing = hop;
    while (next[index(missing)] != missing) missing = next[index(missing)];
    while (hop != missing) hop = std::exchange(next[index(hop)], missing);
    return missing;
  };
  const auto search = [&](const auto& self, int owner, int begin, int end) -> void {
    begin = first_missing(begin);
    if (begin >= end || !any(owner, Hops{begin, end - 1})) return;
    if (end - begin == 1) {
      found[index(begin)] = true;
      next[index(begin)] = begin + 1;
      return;
    }
    const int middle = begin + (end - begin) / 2;
    self(self, owner, begin, middle);
    self(self, owner, middle, end);
  };
  for (int owner = 0; owner < owners && first_missing(0) < size; ++owner) search(search, owner, 0, size);
  return found;
}

}  // namespace annulus::plan
