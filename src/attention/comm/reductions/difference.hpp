#pragma once

#include <string>
#include <vector>

#include "attention/comm/agreement.hpp"

namespace annulus::comm {

/// What one rank has told.
struct RankFacts {
  std::string machine;
  std::vector<Facts::Fact> facts;

  /// Null where the rank has no such key.
  const Facts::Fact* find(const std::string& key) const;
};

/// In one line: the first key on which the ranks differ, the values, who has which, the remedy, and what else
/// differs. For require_agreement.
std::string difference_text(const std::vector<RankFacts>& ranks);

}  // namespace annulus::comm
