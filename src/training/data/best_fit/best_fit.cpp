#include "training/data/best_fit/best_fit.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

namespace annulus::data {

namespace {

using Piece = BestFit::Piece;

/// Documents, cut into pieces of at most one sequence.
std::vector<Piece> pieces_of(std::span<const std::int64_t> documents, std::int64_t tokens,
                             std::int64_t sequence_tokens) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::int64_t end = i + 1 < documents.size() ? documents[i + 1] : tokens;
    for (std::int64_t begin = documents[i]; begin < end; begin += sequence_tokens)
      pieces.push_back({begin, std::min(sequence_tokens, end - begin)});
  }
  return pieces;
}

/// The sequence of each piece.
std::vector<std::int64_t> fit(std::span<const Piece> pieces, std::int64_t sequence_tokens) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return pieces[i].length; });
  std::vector<std::int64_t> sequence_of(pieces.size());
  std::set<std::pair<std::int64_t, std::int64_t>> rooms;  // what is left of each sequence that is not full
  std::int64_t sequences = 0;
  for (const std::size_t piece : order) {
    const std::int64_t length = pieces[piece].length;
    auto room = rooms.lower_bound({length, 0});
    const auto [left, sequence] = room == rooms.end() ? std::pair(sequence_tokens, sequences++) : *room;
    if (room != rooms.end()) rooms.erase(room);
    if (left > length) rooms.emplace(left - length, sequence);
    sequence_of[piece] = sequence;
  }
  return sequence_of;
}

}  // namespace

BestFit::BestFit(std::span<const std::int64_t> documents, std::int64_t tokens, std::int64_t sequence_tokens) {
  const std::vector<Piece> all = pieces_of(documents, tokens, sequence_tokens);
  const std::vector<std::int64_t> sequence_of = fit(all, sequence_tokens);
  // Sequences are numbered as their first pieces come, and pieces are put where their sequence is.
  std::vector<std::int64_t> number(all.size(), -1);
  for (const std::int64_t sequence : sequence_of) {
    auto& its = number[static_cast<std::size_t>(sequence)];
    if (its < 0) {
      its = std::ssize(ends_);
      ends_.push_back(0);
    }
    ++ends_[static_cast<std::size_t>(its)];
  }
  std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
  std::vector<std::int64_t> next(ends_.size());
  for (std::size_t i = 1; i < ends_.size(); ++i) next[i] = ends_[i - 1];
  pieces_.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto sequence = static_cast<std::size_t>(number[static_cast<std::size_t>(sequence_of[i])]);
    pieces_[static_cast<std::size_t>(next[sequence]++)] = all[i];
  }
}

std::span<const BestFit::Piece> BestFit::pieces(std::int64_t index) const {
  const auto sequence = static_cast<std::size_t>(index);
  const std::int64_t begin = sequence == 0 ? 0 : ends_[sequence - 1];
  return std::span(pieces_).subspan(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(ends_[sequence] - begin));
}

}  // namespace annulus::data
