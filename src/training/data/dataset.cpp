#include "training/data/dataset.hpp"

#include <algorithm>
#include <typeinfo>

#include <annulus/base/error.hpp>

#include "row_reader.hpp"
#include "training/io/crc32.hpp"

namespace annulus::data {

namespace {

/// Files kept open; a sequence seldom touches more, and limits on open files are low on some machines.
constexpr std::size_t open_shards = 8;

void require_same_tokenizer(const ShardHeader& first, const ShardHeader& other) {
  const TokenizerIdentity &a = first.tokenizer, &b = other.tokenizer;
  require(a == b,
          "'{}' (tokenizer {} {}, vocabulary {}) and '{}' (tokenizer {} {}, vocabulary {}) were packed with "
          "different tokenizers: read them in separate runs, or pack them again with one tokenizer",
          first.path, a.name, a.fingerprint, a.vocabulary, other.path, b.name, b.fingerprint, b.vocabulary);
}

void require_rows(const PositionMap& rows, std::int64_t sequence_tokens) {
  require(rows.empty() || (rows.front() >= 0 && rows.back() < sequence_tokens),
          "positions {} to {} were asked for of a sequence of {} tokens", rows.empty() ? 0 : rows.front(),
          rows.empty() ? 0 : rows.back(), sequence_tokens);
}

std::span<std::int32_t> part_of(std::vector<std::int32_t>& values, const RowRange& of) {
  return std::span(values).subspan(static_cast<std::size_t>(of.begin), static_cast<std::size_t>(of.size()));
}

/// A sequence with room for the tokens and targets of these rows.
Sequence empty_sequence(const PositionMap& rows) {
  Sequence sequence;
  sequence.rows = rows;
  sequence.tokens.resize(static_cast<std::size_t>(rows.count));
  sequence.targets.resize(sequence.tokens.size());
  return sequence;
}

}  // namespace

const TokenShard& TokenDataset::use(std::size_t index) const {
  const auto found = std::ranges::find(open_, index, &OpenShard::index);
  if (found != open_.end()) {
    std::rotate(found, found + 1, open_.end());
    return open_.back().shard;
  }
  TokenShard shard = TokenShard::open(shards_[index].path);
  const ShardHeader &known = shards_[index], &now = shard.header();
  require(now.tokens == known.tokens && now.checksum == known.checksum &&
              now.loss_mask_checksum == known.loss_mask_checksum && now.tokenizer == known.tokenizer,
          "'{}' has changed since its header was read, or is another file on this machine: leave token "
          "shards alone while they are read, and give every machine the same ones",
          known.path);
  if (open_.size() == open_shards) open_.erase(open_.begin());
  open_.push_back({index, std::move(shard)});
  return open_.back().shard;
}

TokenDataset::TokenDataset(std::span<const std::filesystem::path> paths, std::int64_t sequence_tokens)
    : TokenDataset(read_headers(paths), sequence_tokens) {}

TokenDataset::TokenDataset(std::vector<ShardHeader> shards, std::int64_t sequence_tokens, Filling filling)
    : shards_(std::move(shards)), sequence_tokens_(sequence_tokens) {
  require(sequence_tokens > 0, "a sequence length of {} was asked for: it must be at least 1",
          sequence_tokens);
  require(!shards_.empty(), "no token shards were given: name files or folders of them");
  for (const ShardHeader& shard : shards_) {
    require_same_tokenizer(shards_.front(), shard);
    starts_.push_back(tokens() + shard.tokens);
    documents_ += shard.documents;
  }
  fingerprint_ = fingerprint(shards_.size());
  if (filling == Filling::best_fit)
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const TokenShard& shard = use(i);
      fitted_.emplace_back(shard.documents(), shard.header().tokens, sequence_tokens);
      fitted_ends_.push_back(sequences(i) + fitted_.back().sequences());
    }
  require(sequences() > 0,
          "a sequence of {} tokens (and the target of its last one) is longer than the data: {} tokens in {} "
          "files starting with '{}'; shorten the sequence or pack more text",
          sequence_tokens, tokens(), shards_.size(), shards_.front().path);
}

std::int64_t TokenDataset::sequences(std::size_t shards) const {
  if (fitted_.empty()) return (starts_[shards] - 1) / sequence_tokens_;
  return shards == 0 ? 0 : fitted_ends_[shards - 1];
}

std::int64_t TokenDataset::gaps() const {
  return fitted_.empty() ? 0 : sequences() * sequence_tokens_ - tokens();
}

std::uint32_t TokenDataset::fingerprint(std::size_t shards) const {
  std::uint32_t crc = 0;
  for (const ShardHeader& shard : std::span(shards_).first(shards)) {
    const std::int64_t facts[] = {shard.tokens, shard.checksum};
    crc = io::crc32_of(std::span<const std::int64_t>(facts), crc);
    if (shard.loss_mask_checksum)
      crc = io::crc32_of(std::span<const std::uint32_t>(&*shard.loss_mask_checksum, 1), crc);
  }
  return crc;
}

Sequence RankRows::read(const std::function<Sequence(const PositionMap& rows)>& read_rows) const {
  if (!hold) return read_rows(rows);
  const Sequence outline = read_rows(PositionMap());
  std::shared_ptr<const HeldRows> held;
  try {
    held = hold(outline.document_starts);
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) throw;  // others are caught by their types
    fail("sequence {} of the data: {}", outline.index, error.what());
  }
  Sequence sequence = read_rows(held->rows());
  sequence.held = held;
  return sequence;
}

Sequence TokenDataset::read(std::int64_t index, const PositionMap& rows) const {
  require(index >= 0 && index < sequences(), "sequence {} was asked for; the data has {}", index,
          sequences());
  Sequence sequence = fitted_.empty() ? read_from(index * sequence_tokens_, rows) : read_fitted(index, rows);
  sequence.index = index;
  return sequence;
}

Sequence TokenDataset::read_fitted(std::int64_t index, const PositionMap& rows) const {
  require_rows(rows, sequence_tokens_);
  Sequence sequence = empty_sequence(rows);
  const auto of_shard =
      static_cast<std::size_t>(std::ranges::upper_bound(fitted_ends_, index) - fitted_ends_.begin());

  const std::lock_guard lock(mutex_);
  const TokenShard& shard = use(of_shard);
  std::int64_t position = 0;  // of the piece in the sequence
  for (const auto& [begin, length] : fitted_[of_shard].pieces(index - sequences(of_shard))) {
    const std::int64_t end = position + length;
    const RowRange inside{rows.rows_below(position), rows.rows_below(end)};
    if (!inside.empty())
      read_rows(shard, begin - position, rows.slice(inside), part_of(sequence.tokens, inside),
                part_of(sequence.targets, inside));
    // Of a longer document the piece goes on in another sequence, and its last token has a target.
    const bool ends_document = length < sequence_tokens_ || begin + length == shard.header().tokens ||
                               !shard.documents(begin + length, begin + length + 1).empty();
    if (ends_document && !inside.empty() && rows(inside.end - 1) == end - 1)
      sequence.targets[static_cast<std::size_t>(inside.end - 1)] = ignored_target;
    sequence.document_starts.push_back(position);
    position = end;
  }
  sequence.gap = sequence_tokens_ - position;
  if (sequence.gap == 0) return sequence;
  sequence.document_starts.push_back(position);
  const RowRange gap{rows.rows_below(position), rows.count};
  std::ranges::fill(part_of(sequence.tokens, gap), static_cast<std::int32_t>(tokenizer().end_of_document));
  std::ranges::fill(part_of(sequence.targets, gap), ignored_target);
  return sequence;
}

Sequence TokenDataset::read_from(std::int64_t begin, const PositionMap& rows) const {
  const std::int64_t length = sequence_tokens_, end = begin + length;
  require(begin >= 0 && end < tokens(), "tokens {} to {} and their targets were asked for; the data has {}",
          begin, end - 1, tokens());
  require_rows(rows, length);
  Sequence sequence = empty_sequence(rows);
  std::vector<std::int64_t> starts;  // of documents, relative, in (0, length]

  const std::lock_guard lock(mutex_);
  auto index_of_shard =
      static_cast<std::size_t>(std::ranges::upper_bound(starts_, begin) - starts_.begin() - 1);
  for (; index_of_shard < shards_.size() && starts_[index_of_shard] < end; ++index_of_shard) {
    const TokenShard& shard = use(index_of_shard);
    const std::int64_t offset = starts_[index_of_shard] - begin;  // of the shard, relative to the sequence
    const RowRange inside{rows.rows_below(offset), rows.rows_below(offset + shard.header().tokens)};
    if (!inside.empty())
      read_rows(shard, -offset, rows.slice(inside), part_of(sequence.tokens, inside),
                part_of(sequence.targets, inside));
    for (const std::int64_t start : shard.documents(-offset + 1, length - offset + 1))
      starts.push_back(start + offset);
  }
  if (starts_[index_of_shard] == end) starts.push_back(length);  // a shard starts with a document

  sequence.document_starts.push_back(0);
  for (const std::int64_t start : starts) {
    if (start < length) sequence.document_starts.push_back(start);
    const std::int64_t row = rows.rows_below(start - 1);
    if (row < rows.count && rows(row) == start - 1)
      sequence.targets[static_cast<std::size_t>(row)] = ignored_target;
  }
  return sequence;
}

}  // namespace annulus::data
