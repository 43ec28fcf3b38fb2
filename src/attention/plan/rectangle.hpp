#pragma once

#include <algorithm>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// Half-open ranges intersect in a half-open range, which may be empty.
template <class Range>
constexpr Range intersection(const Range& a, const Range& b) {
  const auto begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// Rows and heads of a slice, as a set of (row, head).
struct Rectangle {
  RowRange rows;
  HeadRange heads;

  constexpr bool empty() const { return rows.size() <= 0 || heads.size() <= 0; }
  constexpr bool contains(const Rectangle& other) const {
    return rows.begin <= other.rows.begin && other.rows.end <= rows.end && heads.begin <= other.heads.begin &&
           other.heads.end <= heads.end;
  }
  friend constexpr bool operator==(const Rectangle&, const Rectangle&) = default;
};

constexpr Rectangle intersection(const Rectangle& a, const Rectangle& b) {
  return {intersection(a.rows, b.rows), intersection(a.heads, b.heads)};
}
constexpr bool overlap(const Rectangle& a, const Rectangle& b) {
  return !intersection(a, b).empty();
}

inline Rectangle rectangle(const TensorSlice& slice) {
  return {slice.rows, slice.heads};
}

}  // namespace annulus::plan
