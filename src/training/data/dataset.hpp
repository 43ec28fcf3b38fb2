#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/sequence/position_map.hpp>

#include "training/data/best_fit/best_fit.hpp"
#include "training/data/shard.hpp"

namespace annulus::data {

/// A target that the loss passes over.
inline constexpr std::int32_t ignored_target = -1;

/// The rows of one sequence that a rank holds, where these follow from its documents, and what else is made
/// from them.
class HeldRows {
 public:
  explicit HeldRows(const PositionMap& rows = {}) : rows_(rows) {}
  virtual ~HeldRows() = default;
  HeldRows(const HeldRows&) = delete;
  HeldRows& operator=(const HeldRows&) = delete;

  /// Positions of the rows. What the map borrows lives as long as this object.
  const PositionMap& rows() const { return rows_; }

 protected:
  PositionMap rows_;
};

/// One rank's part of a sequence.
struct Sequence {
  std::int64_t index = 0;             ///< which sequence of the data set
  std::size_t set = 0;                ///< which set of a Blend that is
  std::int64_t gap = 0;               ///< tokens at its end that are of no document (Filling::best_fit)
  PositionMap rows;                   ///< the rank's positions; what they borrow belongs to `held`
  std::vector<std::int32_t> tokens;   ///< ids at the rank's positions, (rows)
  std::vector<std::int32_t> targets;  ///< the id one position later, or ignored_target, (rows)

  /// Start offsets of the documents of the whole sequence, increasing from 0; what Mask::with_documents
  /// takes.
  std::vector<std::int64_t> document_starts;

  std::shared_ptr<const HeldRows> held;  ///< null where all sequences have the same rows
};

/// Which rows of sequences a rank holds.
struct RankRows {
  using Hold = std::function<std::shared_ptr<const HeldRows>(std::span<const std::int64_t> document_starts)>;
  /// Where ranks make sure in `hold` that all of them prepare the same: how a reader leaves the others.
  struct Leave {
    /// This reader holds nothing any more, for this reason: on the other ranks the next `hold` throws it.
    std::function<void(const std::string& why)> tell;
    /// A `hold` or `tell` under way ends with an Error, whether the others come or not. Any thread calls it.
    std::function<void()> at_once;
  };

  RankRows() = default;
  RankRows(const PositionMap& of_all) : rows(of_all) {}
  RankRows(const PositionMap& of_one, Hold hold, Leave leave = {})
      : rows(of_one), hold(std::move(hold)), leave(std::move(leave)) {}

  /// A sequence, of which `read_rows` reads the rows that it is told. Errors of `hold` name it.
  Sequence read(const std::function<Sequence(const PositionMap& rows)>& read_rows) const;

  PositionMap rows;  ///< of every sequence; with `hold`: of one, all others have as many
  Hold hold;         ///< rows by the sequence's documents; empty: `rows`
  Leave leave;       ///< empty: `hold` waits for nobody
};

/// How sequences are made of documents.
enum class Filling : std::uint8_t {
  stream,   ///< documents, one behind the other, are cut into sequences
  best_fit  ///< sequences hold whole documents of one shard (BestFit), and gaps behind them
};

/// Token shards read as one stream of tokens, cut into sequences of N tokens. Sequence s holds the stream's
/// tokens [s·N, s·N + N); the target of its last position is the token behind it. The stream may be larger
/// than memory: opening reads headers, reading a sequence only the rows that are asked for. May be used by
/// several threads.
///
/// With Filling::best_fit opening reads where documents start, in all shards, and keeps 16 bytes of each. A
/// gap has ends of documents as its tokens and no targets, and counts as a document.
class TokenDataset {
 public:
  /// `paths` are shards or folders of shards (find_shards). Throws Error when one is no good, when they
  /// disagree on the tokenizer or vocabulary, or when the stream is shorter than a sequence and its last
  /// target.
  TokenDataset(std::span<const std::filesystem::path> paths, std::int64_t sequence_tokens);

  /// Opens no shard: `shards` are the headers that read_headers has given, here or in
  /// another process. A shard is opened when read wants tokens of it.
  TokenDataset(std::vector<ShardHeader> shards, std::int64_t sequence_tokens,
               Filling filling = Filling::stream);

  const TokenizerIdentity& tokenizer() const { return shards_.front().tokenizer; }
  std::int64_t vocabulary() const { return tokenizer().vocabulary; }
  std::int64_t tokens() const { return starts_.back(); }             ///< of the whole stream
  std::int64_t documents() const { return documents_; }              ///< of the whole stream
  std::int64_t sequence_tokens() const { return sequence_tokens_; }  ///< N
  std::int64_t sequences() const { return sequences(shards_.size()); }
  /// Tokens of all sequences that are of no document.
  std::int64_t gaps() const;
  const std::vector<ShardHeader>& shards() const { return shards_; }
  /// Sequences that lie in the first so many shards, with their last targets.
  std::int64_t sequences(std::size_t shards) const;

  /// CRC-32 over the checksums (of loss masks, too) and sizes of the shards in order: the same as long as the
  /// stream is the same. A resumed run compares it.
  std::uint32_t fingerprint() const { return fingerprint_; }
  /// The fingerprint of the first so many shards.
  std::uint32_t fingerprint(std::size_t shards) const;

  /// The rows `rows` (positions inside the sequence) of sequence `index`. A target is ignored where the next
  /// token starts a document, or does not count (loss_mask). Throws Error naming file and offset when an id
  /// is not below the vocabulary.
  Sequence read(std::int64_t index, const PositionMap& rows) const;

  /// The rows `rows` of sequence_tokens() tokens of the stream from token `begin` on, wherever that is, also
  /// between the sequences of Filling::best_fit; one more stands behind them, the target of the last. `index`
  /// of the result is 0. Throws Error as read does.
  Sequence read_from(std::int64_t begin, const PositionMap& rows) const;

 private:
  /// A shard that is being read.
  struct OpenShard {
    std::size_t index;
    TokenShard shard;
  };
  const TokenShard& use(std::size_t index) const;
  Sequence read_fitted(std::int64_t index, const PositionMap& rows) const;

  std::vector<ShardHeader> shards_;
  std::vector<std::int64_t> starts_{0};  // where in the stream each shard starts; the last is the total
  std::int64_t documents_ = 0, sequence_tokens_;
  std::vector<BestFit> fitted_;              // of each shard, with Filling::best_fit
  std::vector<std::int64_t> fitted_ends_{};  // of the sequences of each shard, likewise
  std::uint32_t fingerprint_ = 0;            // of all shards
  mutable std::mutex mutex_;                 // of the open shards
  mutable std::vector<OpenShard> open_;      // the one used last comes last
};

}  // namespace annulus::data
