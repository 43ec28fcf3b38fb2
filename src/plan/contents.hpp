#pragma once

#include <optional>
#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "plan/rectangle.hpp"

/// What the validator knows about the memory of a rank.
namespace annulus::plan::validation {

/// A part of what one compute adds to (or merges into) a tensor.
struct Contribution {
  int compute = 0;  // number of the compute
  Rectangle where;
};

/// Contributions that a sum holds, by number of the compute. No (row, head) of a compute is held twice.
class Sum {
 public:
  /// Adds a contribution; false, and no change, when the sum already holds a part of it.
  bool add(const Contribution& contribution);
  /// What of the sum lies in `where`.
  Sum part(const Rectangle& where) const;
  /// Rows × heads of a contribution that the sum holds.
  std::int64_t held(const Contribution& contribution) const;
  bool empty() const { return contributions_.empty(); }
  const std::vector<Contribution>& contributions() const { return contributions_; }
  /// Both hold the same, however it is cut up.
  bool same(const Sum& other) const { return covers(other) && other.covers(*this); }

 private:
  bool covers(const Sum& other) const;
  std::vector<Contribution> contributions_;
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
  std::vector<Use> uses;

  /// A posted transfer that touches `where`: any, or only a landing one. Null when there is none.
  const Use* use_of(const Rectangle& where, bool landing_only) const;
};

}  // namespace annulus::plan::validation
