#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/memory/pinned.hpp"

/// The arrays of a rank in tables: who allocates takes category and size from there, and predictions of
/// memory add up the same rows.
namespace annulus {

/// A row: an array of a rank.
struct PlannedArray {
  std::string_view label;  ///< "annulus::<module>::<what>"
  MemoryCategory category = MemoryCategory::workspace;
  std::int64_t elements = 0;
  std::int64_t element = 1;  ///< bytes of one
  bool pinned = false;       ///< of the host, whatever computes
  /// When it holds something, by the calls of a model to its parameters (model::PassPart): behind `from`
  /// calls and later, but not behind `to` calls.
  int from = 0, to = std::numeric_limits<int>::max();

  std::int64_t bytes() const { return elements * element; }
};
using ArrayTable = std::vector<PlannedArray>;

inline void append(ArrayTable& to, const ArrayTable& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// Bytes of all rows together.
inline std::int64_t bytes_of(const ArrayTable& table) {
  return std::accumulate(table.begin(), table.end(), std::int64_t{0},
                         [](std::int64_t sum, const PlannedArray& array) { return sum + array.bytes(); });
}

/// The first row with this label; one without elements where there is none.
inline PlannedArray array_of(const ArrayTable& table, std::string_view label) {
  const auto found = std::ranges::find(table, label, &PlannedArray::label);
  return found == table.end() ? PlannedArray() : *found;
}

/// Takes the memory of a row, uninitialized; nothing where it has no label.
template <class T, class Exec>
Owned<Array1<T, Exec>> allocate(const Exec& exec, const PlannedArray& array) {
  if (array.label.empty()) return {};
  require(array.element == sizeof(T) && !array.pinned, "{} has elements of {} bytes, not of {}", array.label,
          array.element, sizeof(T));
  return Owned<Array1<T, Exec>>::uninitialized(exec, array.category, std::string(array.label),
                                               array.elements);
}
inline PinnedBuffer allocate_pinned(const PlannedArray& array) {
  return array.label.empty() ? PinnedBuffer()
                             : PinnedBuffer(array.category, std::string(array.label),
                                            static_cast<std::size_t>(array.bytes()));
}

inline std::int64_t& at(MemoryBytes& bytes, MemoryCategory category) {
  return bytes[static_cast<std::size_t>(category)];
}
inline std::int64_t total_bytes(const MemoryBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}
inline void add(MemoryBytes& to, const MemoryBytes& more) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
}
inline void take_most(MemoryBytes& to, const MemoryBytes& other) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], other[i]);
}

}  // namespace annulus
