#include <annulus/data/dataset.hpp>

#include <algorithm>
#include <mutex>

#include <annulus/base/error.hpp>
#include <annulus/io/crc32.hpp>

#include "row_reader.hpp"

namespace annulus::data {

namespace {

/// A shard that is being read.
struct OpenShard {
  std::size_t index;
  TokenShard shard;
};

/// Files kept open; a sequence seldom touches more, and limits on open files are low on some machines.
constexpr std::size_t open_shards = 8;

void require_same_tokenizer(const ShardHeader& first, const ShardHeader& other) {
  const TokenizerIdentity &a = first.tokenizer, &b = other.tokenizer;
  require(a == b,
          "'{}' (tokenizer {} {}, vocabulary {}) and '{}' (tokenizer {} {}, vocabulary {}) were packed with "
          "different "
          "tokenizers: read them in separate runs, or pack them again with one tokenizer",
          first.path, a.name, a.fingerprint, a.vocabulary, other.path, b.name, b.fingerprint, b.vocabulary);
}

}  // namespace

struct TokenDataset::State {
  std::vector<ShardHeader> shards;
  std::vector<std::int64_t> starts{0};  // where in the stream each shard starts; the last is the total
  std::int64_t documents = 0, sequence_tokens = 0;

  std::mutex mutex;
  std::vector<OpenShard> open;  // the one used last comes last

  std::int64_t tokens() const { return starts.back(); }
  std::int64_t sequences() const { return (tokens() - 1) / sequence_tokens; }

  OpenShard& use(std::size_t index) {
    const auto found = std::find_if(open.begin(), open.end(),
                                    [=](const OpenShard& candidate) { return candidate.index == index; });
    if (found != open.end()) {
      std::rotate(found, found + 1, open.end());
      return open.back();
    }
    TokenShard shard = TokenShard::open(shards[index].path);
    const ShardHeader &known = shards[index], &now = shard.header();
    require(
        now.tokens == known.tokens && now.checksum == known.checksum && now.tokenizer == known.tokenizer,
        "'{}' has changed since its header was read, or is another file on this machine: leave token shards "
        "alone while they are read, and give every machine the same ones",
        known.path);
    if (open.size() == open_shards) open.erase(open.begin());
    open.push_back({index, std::move(shard)});
    return open.back();
  }
};

TokenDataset::TokenDataset(std::span<const std::filesystem::path> paths, std::int64_t sequence_tokens)
    : TokenDataset(read_headers(paths), sequence_tokens) {}

TokenDataset::TokenDataset(std::vector<ShardHeader> shards, std::int64_t sequence_tokens)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  require(sequence_tokens > 0, "a sequence length of {} was asked for: it must be at least 1",
          sequence_tokens);
  state.sequence_tokens = sequence_tokens;
  require(!shards.empty(), "no token shards were given: name files or folders of them");
  state.shards = std::move(shards);
  for (const ShardHeader& shard : state.shards) {
    require_same_tokenizer(state.shards.front(), shard);
    state.starts.push_back(state.starts.back() + shard.tokens);
    state.documents += shard.documents;
  }
  require(state.sequences() > 0,
          "a sequence of {} tokens (and the target of its last one) is longer than the data: {} tokens in {} "
          "files "
          "starting with '{}'; shorten the sequence or pack more text",
          sequence_tokens, state.tokens(), state.shards.size(), state.shards.front().path);
}

TokenDataset::~TokenDataset() = default;
TokenDataset::TokenDataset(TokenDataset&&) noexcept = default;
TokenDataset& TokenDataset::operator=(TokenDataset&&) noexcept = default;

const TokenizerIdentity& TokenDataset::tokenizer() const {
  return state_->shards.front().tokenizer;
}
std::int64_t TokenDataset::tokens() const {
  return state_->tokens();
}
std::int64_t TokenDataset::documents() const {
  return state_->documents;
}
std::int64_t TokenDataset::sequence_tokens() const {
  return state_->sequence_tokens;
}
std::int64_t TokenDataset::sequences() const {
  return state_->sequences();
}
const std::vector<ShardHeader>& TokenDataset::shards() const {
  return state_->shards;
}

std::uint32_t TokenDataset::fingerprint() const {
  std::uint32_t crc = 0;
  for (const ShardHeader& shard : state_->shards) {
    const std::int64_t facts[] = {shard.tokens, shard.checksum};
    crc = io::crc32_of(std::span<const std::int64_t>(facts), crc);
  }
  return crc;
}

Sequence TokenDataset::read(std::int64_t index, const PositionMap& rows) const {
  State& state = *state_;
  const std::int64_t length = state.sequence_tokens;
  require(index >= 0 && index < state.sequences(), "sequence {} was asked for; the data has {}", index,
          state.sequences());
  require(rows.empty() || (rows.front() >= 0 && rows.back() < length),
          "positions {} to {} were asked for of a sequence of {} tokens", rows.empty() ? 0 : rows.front(),
          rows.empty() ? 0 : rows.back(), length);
  const std::int64_t begin = index * length, end = begin + length;

  Sequence sequence;
  sequence.index = index;
  sequence.tokens.resize(static_cast<std::size_t>(rows.count));
  sequence.targets.resize(sequence.tokens.size());
  std::vector<std::int64_t> starts;  // of documents, relative, in (0, length]

  const std::lock_guard lock(state.mutex);
  auto shard = static_cast<std::size_t>(std::upper_bound(state.starts.begin(), state.starts.end(), begin) -
                                        state.starts.begin() - 1);
  for (; shard < state.shards.size() && state.starts[shard] < end; ++shard) {
    const OpenShard& open = state.use(shard);
    const std::int64_t offset = state.starts[shard] - begin;  // of the shard, relative to the sequence
    const RowRange inside{rows.rows_below(offset), rows.rows_below(offset + open.shard.header().tokens)};
    if (!inside.empty()) {
      const auto part = [&](std::vector<std::int32_t>& values) {
        return std::span(values).subspan(static_cast<std::size_t>(inside.begin),
                                         static_cast<std::size_t>(inside.size()));
      };
      read_rows(open.shard, -offset, rows.slice(inside), part(sequence.tokens), part(sequence.targets));
    }
    for (const std::int64_t start : open.shard.documents(-offset + 1, length - offset + 1))
      starts.push_back(start + offset);
  }
  if (state.starts[shard] == end) starts.push_back(length);  // a shard starts with a document

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
