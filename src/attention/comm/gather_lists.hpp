#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus::comm {

/// What each rank has of a list (a vector, a string), of which it may have any number. Collective.
template <class List>
std::vector<List> gather_lists(Communicator& communicator, List mine) {
  const Queue host{HostExec()};
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::size_t size = mine.size();
  std::vector<std::size_t> sizes(ranks);
  communicator.all_gather(host, &size, sizes.data(), sizeof size);
  const std::size_t most = std::ranges::max(sizes);
  mine.resize(most);
  List all;
  all.resize(ranks * most);
  if (most > 0) communicator.all_gather(host, mine.data(), all.data(), most * sizeof(*mine.data()));
  std::vector<List> lists;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * most);
    lists.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(sizes[rank]));
  }
  return lists;
}

}  // namespace annulus::comm
