#pragma once

#include <vector>

#include "distributed/block_parts.hpp"

namespace annulus::distributed {

/// Blocks of results that ought to hold zeros (−∞ for LSE) and have not been cleared: a local call that is
/// the first to write such a block need not read it, so that clearing it would be wasted. Whoever else
/// touches one has it cleared first. Functions take `clear`, which is called with the blocks that are to be
/// cleared now.
class Unwritten {
 public:
  /// From here on `block` counts as cleared.
  template <class Clear>
  void add(const Block& block, const Clear& clear) {
    settle(block, clear);  // of an array that the slot held before, maybe
    keep(block);
  }

  /// A local call is about to write `part`. True if nothing has been written to all of it; it counts as
  /// written from here on. Otherwise what was unwritten of it is cleared.
  template <class Clear>
  bool take(const Block& part, const Clear& clear) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (!contains(blocks_[i], part)) continue;
      const Block whole = blocks_[i];
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
      for (const Block& rest : without(whole, part)) keep(rest);
      return true;
    }
    settle(part, clear);
    return false;
  }

  /// Somebody is about to read or write `touched`.
  template <class Clear>
  void settle(const Block& touched, const Clear& clear) {
    std::erase_if(blocks_, [&](const Block& block) {
      const bool hit = overlap(block, touched);
      if (hit) clear(block);
      return hit;
    });
  }

  /// Somebody may look at all results.
  template <class Clear>
  void settle_all(const Clear& clear) {
    for (const Block& block : blocks_) clear(block);
    blocks_.clear();
  }

 private:
  void keep(const Block& block) {
    if (block.elements() > 0) blocks_.push_back(block);
  }

  std::vector<Block> blocks_;
};

}  // namespace annulus::distributed
