#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/rectangle.hpp"

/// What the validator knows about the memory of a rank.
namespace annulus::plan::validation {

/// A set of (row, head), as few rectangles, which may overlap.
class RectangleSet {
 public:
  void add(Rectangle where);
  void subtract(const Rectangle& where);
  void clear() { parts_.clear(); }
  bool empty() const { return parts_.empty(); }
  bool touches(const Rectangle& where) const;
  const std::vector<Rectangle>& parts() const { return parts_; }

 private:
  std::vector<Rectangle> parts_;
};

/// A posted transfer that reads or writes a slot until it is waited for.
struct SlotUse {
  std::int64_t transfer = 0;
  bool landing = false;  // a receive; otherwise a send
  Rectangle where;
  const char* describe() const { return landing ? "received into" : "sent from"; }
};

/// One slot of one tensor of one rank. Of a sum (o and lse of a forward, gradients), besides what it holds:
/// which of it has contributions that are to go on from here, and which has gone.
struct SlotState {
  std::optional<TensorSlice> held;  // nothing: undefined
  RectangleSet contributed, sent_on;
  std::uint64_t history = 0;  // of o and lse: fingerprint of all that was added up; both have the same
  std::vector<SlotUse> sends, landings;
  bool known = false;  // somebody has used it

  /// Holds a slice from now on, of which nothing has been added up.
  void begin(const TensorSlice& slice);
  /// A posted transfer that touches `where`: any, or only a landing one. Null when there is none.
  const SlotUse* use_of(const Rectangle& where, bool landing_only) const;
};

/// The slots of a rank.
class RankSlots {
 public:
  SlotState& at(Tensor tensor, Slot slot) {
    auto& slots = slots_[static_cast<std::size_t>(tensor)];
    const auto index = static_cast<std::size_t>(slot);
    if (slots.size() <= index) slots.resize(index + 1);
    return slots[index];
  }
  /// The slots of a tensor that somebody has used, and some more.
  const std::vector<SlotState>& slots(Tensor tensor) const {
    return slots_[static_cast<std::size_t>(tensor)];
  }

 private:
  std::array<std::vector<SlotState>, tensor_count> slots_;
};

}  // namespace annulus::plan::validation
