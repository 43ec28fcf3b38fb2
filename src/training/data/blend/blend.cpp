#include "training/data/blend/blend.hpp"

#include <span>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/splitmix.hpp"
#include "training/io/crc32.hpp"

namespace annulus::data {

Blend::Blend(std::shared_ptr<const TokenDataset> dataset) : Blend(std::vector<Set>{{"", 1, dataset}}) {}

Blend::Blend(std::vector<Set> sets) : sets_(std::move(sets)) {
  require(!sets_.empty(), "a blend of no sets was asked for: give one at least");
  for (const Set& set : sets_) {
    const TokenizerIdentity &ours = tokenizer(), &its = set.dataset->tokenizer();
    require(its == ours,
            "set '{}' (tokenizer {} {}, vocabulary {}) and set '{}' (tokenizer {} {}, vocabulary {}) were "
            "packed with different tokenizers: pack them with one, or leave one of them out",
            sets_.front().name, ours.name, ours.fingerprint, ours.vocabulary, set.name, its.name,
            its.fingerprint, its.vocabulary);
    ANNULUS_ASSERT(set.dataset->sequence_tokens() == sequence_tokens());
  }
}

std::int64_t Blend::sequences() const {
  std::int64_t sequences = 0;
  for (const Set& set : sets_) sequences += set.dataset->sequences();
  return sequences;
}

double Blend::share(std::size_t set) const {
  double all = 0;
  for (const Set& of : sets_) all += double(of.weight);
  return double(sets_[set].weight) / all;
}

BlendOrder Blend::order(std::uint64_t seed, bool shuffle) const {
  std::vector<BlendOrder::Set> of;
  for (const Set& set : sets_) {
    // The only set is read by the seed itself.
    const std::uint64_t own = set.name.empty() ? seed : seed ^ splitmix64(io::crc32_of(std::span(set.name)));
    of.push_back({set.dataset->sequences(), set.weight, own});
  }
  return BlendOrder(std::move(of), shuffle);
}

Sequence Blend::read(const BlendOrder::Draw& draw, const PositionMap& rows) const {
  Sequence sequence = sets_[draw.set].dataset->read(draw.index, rows);
  sequence.set = draw.set;
  return sequence;
}

Sequence Blend::read(std::int64_t index, const PositionMap& rows) const {
  std::size_t set = 0;
  for (; set + 1 < sets_.size() && index >= sets_[set].dataset->sequences(); ++set)
    index -= sets_[set].dataset->sequences();
  return read({set, index}, rows);
}

}  // namespace annulus::data
