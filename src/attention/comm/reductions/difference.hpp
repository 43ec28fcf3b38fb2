#pragma once

#include <string>
#include <vector>

#include "attention/comm/agreement.hpp"

namespace annulus::comm {

/// What one rank has told.
struct RankFacts {
  std::string machine;
  std::vector<Facts::Fact> facts;

  /// The fact of this key; null where the rank has none.
  const Facts::Fact* find(const std::string& key) const;
};

/// A line for require_agreement: the first key on which the ranks differ, the values, who has which, the
/// remedy, and what else differs.
std::string difference_text(const std::vector<RankFacts>& ranks);

}  // namespace annulus::comm
