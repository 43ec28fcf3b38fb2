#include "attention/plan/validate/contents.hpp"

#include <algorithm>

namespace annulus::plan::validation {
namespace {

template <class Range>
bool touch(const Range& a, const Range& b) {
  return a.begin <= b.end && b.begin <= a.end;
}

/// The union of two rectangles that side by side, or one over the other, make a rectangle.
std::optional<Rectangle> united(const Rectangle& a, const Rectangle& b) {
  const Rectangle hull{{std::min(a.rows.begin, b.rows.begin), std::max(a.rows.end, b.rows.end)},
                       {std::min(a.heads.begin, b.heads.begin), std::max(a.heads.end, b.heads.end)}};
  const bool one = a.contains(b) || b.contains(a) || (a.heads == b.heads && touch(a.rows, b.rows)) ||
                   (a.rows == b.rows && touch(a.heads, b.heads));
  return one ? std::optional(hull) : std::nullopt;
}

}  // namespace

void RectangleSet::add(Rectangle where) {
  if (where.empty()) return;
  for (std::size_t i = 0; i < parts_.size();) {
    if (const auto both = united(parts_[i], where)) {
      where = *both;
      parts_[i] = parts_.back();
      parts_.pop_back();
      i = 0;  // the larger one may fit to parts that the smaller one did not
    } else {
      ++i;
    }
  }
  parts_.push_back(where);
}

void RectangleSet::subtract(const Rectangle& where) {
  if (!touches(where)) return;
  std::vector<Rectangle> before;
  std::swap(before, parts_);
  for (const Rectangle& part : before) {
    const Rectangle gone = intersection(part, where);
    if (gone.empty()) {
      parts_.push_back(part);
      continue;
    }
    for (const Rectangle& rest : {Rectangle{{part.rows.begin, gone.rows.begin}, part.heads},
                                  Rectangle{{gone.rows.end, part.rows.end}, part.heads},
                                  Rectangle{gone.rows, {part.heads.begin, gone.heads.begin}},
                                  Rectangle{gone.rows, {gone.heads.end, part.heads.end}}}) {
      if (!rest.empty()) parts_.push_back(rest);
    }
  }
}

bool RectangleSet::touches(const Rectangle& where) const {
  return std::ranges::any_of(parts_, [&](const Rectangle& part) { return overlap(part, where); });
}

void SlotState::begin(const TensorSlice& slice) {
  held = slice;
  contributed.clear();
  sent_on.clear();
  history = 0;
}

const SlotUse* SlotState::use_of(const Rectangle& where, bool landing_only) const {
  const auto touches = [&](const SlotUse& use) { return overlap(use.where, where); };
  if (const auto found = std::ranges::find_if(landings, touches); found != landings.end()) return &*found;
  if (landing_only) return nullptr;
  const auto found = std::ranges::find_if(sends, touches);
  return found == sends.end() ? nullptr : &*found;
}

}  // namespace annulus::plan::validation
