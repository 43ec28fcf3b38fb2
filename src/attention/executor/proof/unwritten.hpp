#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "attention/executor/blocks/block.hpp"

namespace annulus::executor {

/// Blocks of results that ought to hold zeros (−∞ for LSE) and have not been cleared: a local call that is
/// the first to write such a block need not read it, so that clearing it would be wasted. Whoever else
/// touches one has it cleared first.
class Unwritten {
 public:
  /// `clear` is called with the blocks that are to be cleared now.
  explicit Unwritten(std::function<void(const StridedBlock&)> clear) : clear_(std::move(clear)) {}

  /// Counts `block` as cleared from here on.
  void add(const StridedBlock& block) {
    settle(block);  // of an array that the slot held before, maybe
    keep(block);
  }

  /// A local call is about to write `part`. True if nothing has been written to all of it; it counts as
  /// written from here on. Otherwise what was unwritten of it is cleared.
  bool take(const StridedBlock& part) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (!contains(blocks_[i], part)) continue;
      const StridedBlock whole = blocks_[i];
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
      for (const StridedBlock& rest : without(whole, part)) keep(rest);
      return true;
    }
    settle(part);
    return false;
  }

  /// Somebody is about to read or write `touched`.
  void settle(const StridedBlock& touched) {
    std::erase_if(blocks_, [&](const StridedBlock& block) {
      const bool hit = overlap(block, touched);
      if (hit) clear_(block);
      return hit;
    });
  }

  /// Somebody may look at all results.
  void settle_all() {
    for (const StridedBlock& block : blocks_) clear_(block);
    blocks_.clear();
  }

 private:
  void keep(const StridedBlock& block) {
    if (block.elements() > 0) blocks_.push_back(block);
  }

  std::function<void(const StridedBlock&)> clear_;
  std::vector<StridedBlock> blocks_;
};

}  // namespace annulus::executor
