#include <annulus/sequence/layout.hpp>

#include <fmt/format.h>

#include <algorithm>

#include <annulus/base/error.hpp>

#include "numbers.hpp"

namespace annulus {

namespace {

constexpr std::string_view block_striped_prefix = "block-striped:";

/// `tokens` cut into `chunks` chunks, the first tokens mod chunks of them one longer.
struct Chunks {
  std::int64_t tokens, chunks;
  std::int64_t start(std::int64_t chunk) const {
    return chunk * (tokens / chunks) + std::min(chunk, tokens % chunks);
  }
  std::int64_t length(std::int64_t chunk) const {
    return tokens / chunks + (chunk < tokens % chunks ? 1 : 0);
  }
};

PositionMap contiguous_shard(std::int64_t tokens, std::int64_t ranks, std::int64_t rank) {
  const Chunks chunks{tokens, ranks};
  const std::int64_t rows = chunks.length(rank), block = std::max<std::int64_t>(rows, 1);
  return {.base = chunks.start(rank), .hi = block, .lo = 1, .block = block, .first = 0, .count = rows};
}

PositionMap zigzag_shard(std::int64_t tokens, std::int64_t ranks, std::int64_t rank) {
  const Chunks chunks{tokens, 2 * ranks};
  const std::int64_t front = rank, back = 2 * ranks - 1 - rank;
  // The front chunk is never the shorter one, so only the last block of the map can be short.
  const std::int64_t block = std::max<std::int64_t>(chunks.length(front), 1);
  return {.base = chunks.start(front),
          .hi = std::max(chunks.start(back) - chunks.start(front), block),
          .lo = 1,
          .block = block,
          .first = 0,
          .count = chunks.length(front) + chunks.length(back)};
}

PositionMap striped_shard(std::int64_t tokens, std::int64_t ranks, std::int64_t rank) {
  const std::int64_t rows = rank < tokens ? (tokens - 1 - rank) / ranks + 1 : 0;
  return {.base = rank, .hi = ranks, .lo = ranks, .block = 1, .first = 0, .count = rows};
}

PositionMap block_striped_shard(std::int64_t tokens, std::int64_t ranks, std::int64_t rank,
                                std::int64_t stripe) {
  stripe =
      std::min(stripe, std::max<std::int64_t>(tokens, 1));  // a longer one is cut at the end of the sequence
  const std::int64_t stripes = (tokens + stripe - 1) / stripe;
  std::int64_t rows = rank < stripes ? ((stripes - 1 - rank) / ranks + 1) * stripe : 0;
  if (rows > 0 && (stripes - 1) % ranks == rank)
    rows -= stripes * stripe - tokens;  // the last stripe may be short
  return {.base = rank * stripe, .hi = ranks * stripe, .lo = 1, .block = stripe, .first = 0, .count = rows};
}

}  // namespace

Layout::Layout(Kind kind, std::int64_t stripe) : kind_(kind), stripe_(stripe) {
  require(stripe >= 1, "layout: stripes of {} tokens: a stripe has at least one token", stripe);
  require(kind == Kind::block_striped || stripe == 1,
          "layout: stripes of {} tokens belong to block-striped only: leave the stripe out", stripe);
}

Layout Layout::parse(std::string_view text, std::string_view field) {
  if (text == "contiguous") return Layout(Kind::contiguous);
  if (text == "zigzag") return Layout(Kind::zigzag);
  if (text == "striped") return Layout(Kind::striped);
  if (text.starts_with(block_striped_prefix)) {
    const auto stripe = detail::parse_integer(text.substr(block_striped_prefix.size()));
    require(stripe && *stripe >= 1,
            "{} = '{}': the stripe is no positive number of tokens: write for instance block-striped:64",
            field, text);
    return Layout(Kind::block_striped, *stripe);
  }
  fail("{} = '{}' is no layout: use contiguous, zigzag, striped or block-striped:B (stripes of B tokens)",
       field, text);
}

std::string Layout::to_string() const {
  switch (kind_) {
    case Kind::contiguous:
      return "contiguous";
    case Kind::zigzag:
      return "zigzag";
    case Kind::striped:
      return "striped";
    case Kind::block_striped:
      return fmt::format("{}{}", block_striped_prefix, stripe_);
  }
  return "?";
}

PositionMap Layout::shard(std::int64_t tokens, int ranks, int rank) const {
  require(tokens >= 0, "layout {}: a sequence of {} tokens: the length cannot be negative", to_string(),
          tokens);
  require(ranks >= 1 && rank >= 0 && rank < ranks, "layout {}: no rank {} among {} ranks: ranks count from 0",
          to_string(), rank, ranks);
  switch (kind_) {
    case Kind::contiguous:
      return contiguous_shard(tokens, ranks, rank);
    case Kind::zigzag:
      return zigzag_shard(tokens, ranks, rank);
    case Kind::striped:
      return striped_shard(tokens, ranks, rank);
    case Kind::block_striped:
      return block_striped_shard(tokens, ranks, rank, stripe_);
  }
  fail("layout: unknown kind {}", static_cast<int>(kind_));
}

}  // namespace annulus
