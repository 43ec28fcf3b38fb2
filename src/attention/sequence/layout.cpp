#include <annulus/attention/sequence/layout.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <annulus/base/error.hpp>

#include "attention/sequence/balanced_cut.hpp"
#include "base/nearest.hpp"
#include "base/parse_number.hpp"

namespace annulus {

namespace {

constexpr std::string_view block_striped_prefix = "block-striped:";
/// Names of the layouts, in the order of Layout::Kind.
constexpr auto layout_names =
    std::to_array<std::string_view>({"contiguous", "zigzag", "striped", "block-striped", "balanced"});

/// `tokens` cut into `chunks` chunks, the first tokens mod chunks of them one longer.
struct Chunks {
  std::int64_t tokens, chunks;
  std::int64_t start(std::int64_t chunk) const {
    return chunk * (tokens / chunks) + std::min(chunk, tokens % chunks);
  }
};

/// Ranks first … last − 1 of `ranks`.
struct Ranks {
  std::int64_t ranks, first, last;
};

PositionMap contiguous_shards(std::int64_t tokens, const Ranks& of) {
  const Chunks chunks{tokens, of.ranks};
  const std::int64_t begin = chunks.start(of.first), rows = chunks.start(of.last) - begin;
  const std::int64_t block = std::max<std::int64_t>(rows, 1);
  return {.base = begin, .hi = block, .lo = 1, .block = block, .first = 0, .count = rows};
}

PositionMap zigzag_shards(std::int64_t tokens, const Ranks& of) {
  const Chunks chunks{tokens, 2 * of.ranks};
  const std::int64_t front = chunks.start(of.first), front_rows = chunks.start(of.last) - front;
  const std::int64_t back = chunks.start(2 * of.ranks - of.last);
  const std::int64_t back_rows = chunks.start(2 * of.ranks - of.first) - back;
  // The front chunks are never shorter than the back ones, so only the last block of the map can be short.
  const std::int64_t block = std::max<std::int64_t>(front_rows, 1);
  return {.base = front,
          .hi = std::max(back - front, block),
          .lo = 1,
          .block = block,
          .first = 0,
          .count = front_rows + back_rows};
}

PositionMap striped_shards(std::int64_t tokens, const Ranks& of, std::int64_t stripe) {
  stripe =
      std::min(stripe, std::max<std::int64_t>(tokens, 1));  // a longer one is cut at the end of the sequence
  // One round of stripes goes to all ranks; the last round may be short.
  const std::int64_t round = of.ranks * stripe, block = (of.last - of.first) * stripe;
  const std::int64_t rest = std::clamp<std::int64_t>(tokens % round - of.first * stripe, 0, block);
  return {.base = of.first * stripe,
          .hi = round,
          .lo = block == 1 ? round : 1,
          .block = block,
          .first = 0,
          .count = tokens / round * block + rest};
}

}  // namespace

Layout::Layout(Kind kind, std::int64_t stripe) : kind_(kind), stripe_(stripe) {
  require(stripe >= 1, "layout: stripes of {} tokens: a stripe has at least one token", stripe);
  require(kind == Kind::block_striped || stripe == 1,
          "layout: stripes of {} tokens belong to block-striped only: leave the stripe out", stripe);
}

Layout Layout::parse(std::string_view text, std::string_view field) {
  for (const Kind kind : {Kind::contiguous, Kind::zigzag, Kind::striped, Kind::balanced})
    if (text == layout_names[static_cast<std::size_t>(kind)]) return Layout(kind);
  // Also without the colon.
  if (text.starts_with(block_striped_prefix) ||
      text == layout_names[static_cast<std::size_t>(Kind::block_striped)]) {
    const auto stripe =
        parse_number<std::int64_t>(text.substr(std::min(text.size(), block_striped_prefix.size())));
    require(stripe && *stripe >= 1,
            "{} = '{}': the stripe is no positive number of tokens: write for instance block-striped:64",
            field, text);
    return Layout(Kind::block_striped, *stripe);
  }
  fail(
      "{} = '{}' is no layout: {}use contiguous, zigzag, striped, "
      "block-striped:B (stripes of B tokens) or balanced",
      field, text, did_you_mean(text.substr(0, text.find(':')), layout_names));
}

std::string Layout::to_string() const {
  if (kind_ == Kind::block_striped) return fmt::format("{}{}", block_striped_prefix, stripe_);
  return std::string(layout_names[static_cast<std::size_t>(kind_)]);
}

Layout Layout::for_mask(const Mask& mask, int ranks, int ranks_per_node) const {
  if (kind_ != Kind::balanced) return *this;
  const MaskedLayers layers{mask};
  return for_layers({&layers, 1}, ranks, ranks_per_node);
}

Layout Layout::for_layers(std::span<const MaskedLayers> layers, int ranks, int ranks_per_node) const {
  Layout layout = *this;
  const auto is_cut_for = [&](const MaskedLayers& of) {
    return cut_ != nullptr && cut_->is_for(of.mask, ranks, ranks_per_node);
  };
  if (kind_ == Kind::balanced && !std::ranges::all_of(layers, is_cut_for))
    layout.cut_ = std::make_shared<const BalancedCut>(layers, ranks, ranks_per_node);
  return layout;
}

std::span<const RowRun> Layout::runs() const {
  return cut_ == nullptr ? std::span<const RowRun>() : cut_->runs();
}

std::span<const std::int64_t> Layout::cut_pairs() const {
  return cut_ == nullptr ? std::span<const std::int64_t>() : cut_->pairs();
}

std::uint64_t Layout::cut_fingerprint() const {
  return cut_ == nullptr ? 0 : cut_->fingerprint();
}

bool operator==(const Layout& a, const Layout& b) {
  if (a.kind_ != b.kind_ || a.stripe_ != b.stripe_ || a.has_shards() != b.has_shards()) return false;
  return a.cut_ == b.cut_ || *a.cut_ == *b.cut_;
}

PositionMap Layout::shard(std::int64_t tokens, int ranks, int rank) const {
  require(ranks >= 1 && rank >= 0 && rank < ranks, "layout {}: no rank {} among {} ranks: ranks count from 0",
          to_string(), rank, ranks);
  return shards(tokens, ranks, rank, rank + 1);
}

PositionMap Layout::shards(std::int64_t tokens, int ranks, int first, int last) const {
  require(tokens >= 0, "layout {}: a sequence of {} tokens: the length cannot be negative", to_string(),
          tokens);
  require(0 <= first && first < last && last <= ranks,
          "layout {}: no ranks from {} up to but not including {} among {}: ranks count from 0", to_string(),
          first, last, ranks);
  const Ranks of{ranks, first, last};
  switch (kind_) {
    case Kind::contiguous:
      return contiguous_shards(tokens, of);
    case Kind::zigzag:
      return zigzag_shards(tokens, of);
    case Kind::striped:
    case Kind::block_striped:
      return striped_shards(tokens, of, stripe_);
    case Kind::balanced:
      require(cut_ != nullptr && cut_->tokens() == tokens && cut_->ranks() == ranks,
              "layout balanced: it has not been cut for {} tokens on {} ranks: ask Layout::for_mask for one "
              "that has",
              tokens, ranks);
      return cut_->shards(first, last);
  }
  fail("layout: unknown kind {}", static_cast<int>(kind_));
}

}  // namespace annulus
