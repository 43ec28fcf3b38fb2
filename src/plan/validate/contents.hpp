#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "plan/rectangle.hpp"

/// What the validator knows about the memory of a rank.
namespace annulus::plan::validation {

/// Number of a compute, relative to the owner of what it adds to (data_flow.cpp).
using ComputeId = std::int64_t;

/// A part of what one compute adds to (or merges into) a tensor.
struct Contribution {
  ComputeId compute = 0;
  Rectangle where;
};

/// What of a sum has the same contributions.
struct Share {
  Rectangle where;
  std::vector<ComputeId> computes;  // increasing
};

/// Contributions that a sum holds. No (row, head) of a compute is held twice. Few shares, as a rule one, hold
/// many computes each.
class Sum {
 public:
  /// Adds a contribution; false, and no change, when the sum already holds a part of it.
  bool add(const Contribution& contribution);
  /// Adds all of another sum, and gives the first compute of which this one already holds a part: nothing is
  /// said of the contents then.
  std::optional<ComputeId> add(Sum&& other);
  /// What of the sum lies in `where`.
  Sum part(const Rectangle& where) const;
  /// Rows × heads of a contribution that the sum holds.
  std::int64_t held(const Contribution& contribution) const;
  bool empty() const { return shares_.empty(); }
  /// Both hold the same, however it is cut up.
  bool same(const Sum& other) const { return shares_equal(other) || (covers(other) && other.covers(*this)); }
  /// Takes all rows `whole` for rows `other`.
  void resize(RowRange whole, RowRange other);

 private:
  bool shares_equal(const Sum& other) const;
  bool covers(const Sum& other) const;
  std::optional<ComputeId> add(Share&& share);
  std::vector<Share> shares_;
};

/// What a slot holds: a piece, and for accumulators (o and lse of a forward, gradients) what has been summed
/// in it.
struct Content {
  Piece piece;
  Sum sum;
};

/// A posted transfer that reads or writes a slot until it is waited for.
struct Use {
  int message = 0;
  bool landing = false;  // a receive; otherwise a send
  Rectangle where;
  std::string describe() const { return landing ? "received into" : "sent from"; }
};

/// One slot of one tensor of one rank.
struct Buffer {
  std::optional<Content> content;  // nothing: undefined
  std::vector<Use> sends, landings;
  bool known = false;        // somebody has used it
  std::int64_t version = 0;  // grows with every change of the content
  std::int64_t agrees = -1;  // of lse: version of o with which it was found to agree, …
  std::int64_t agreed = -1;  // … being of this version itself

  /// A posted transfer that touches `where`: any, or only a landing one. Null when there is none.
  const Use* use_of(const Rectangle& where, bool landing_only) const;
};

/// The slots of a rank.
class Memory {
 public:
  Buffer& at(Tensor tensor, Slot slot) {
    auto& slots = slots_[static_cast<std::size_t>(tensor)];
    const auto index = static_cast<std::size_t>(slot);
    if (slots.size() <= index) slots.resize(index + 1);
    return slots[index];
  }

 private:
  std::array<std::vector<Buffer>, tensor_count> slots_;
};

}  // namespace annulus::plan::validation
