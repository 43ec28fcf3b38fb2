#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "training/data/blend/blend_order.hpp"
#include "training/data/dataset.hpp"

namespace annulus::data {

/// Data sets that are read together, a share of the sequences from each.
class Blend {
 public:
  struct Set {
    std::string name;         ///< empty: the only set
    std::int64_t weight = 1;  ///< relative to those of the others
    std::shared_ptr<const TokenDataset> dataset;
  };

  /// Throws Error where sets have other tokenizers, naming them.
  explicit Blend(std::vector<Set> sets);
  /// One data set.
  Blend(std::shared_ptr<const TokenDataset> dataset);

  const std::vector<Set>& sets() const { return sets_; }
  const TokenizerIdentity& tokenizer() const { return sets_.front().dataset->tokenizer(); }
  std::int64_t vocabulary() const { return tokenizer().vocabulary; }
  std::int64_t sequence_tokens() const { return sets_.front().dataset->sequence_tokens(); }
  std::int64_t sequences() const;  ///< of all sets
  /// The share of the sequences that come from a set.
  double share(std::size_t set) const;

  /// The order in which the sets are read. The order inside of a set depends on its name, its number of
  /// sequences and `seed`, and not on the other sets.
  BlendOrder order(std::uint64_t seed, bool shuffle) const;

  /// The rows `rows` of a sequence (TokenDataset::read); Sequence::set says whose it is.
  Sequence read(const BlendOrder::Draw& draw, const PositionMap& rows) const;
  /// The rows `rows` of the `index`-th of the sequences of all sets, one set behind the other.
  Sequence read(std::int64_t index, const PositionMap& rows) const;

 private:
  std::vector<Set> sets_;
};

}  // namespace annulus::data
