#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include <annulus/base/error.hpp>

#include "token_type.hpp"
#include "training/data/shard.hpp"
#include "training/io/crc32.hpp"

namespace annulus::data {

static_assert(std::endian::native == std::endian::little, "checksums are over little-endian bytes");

namespace {

void require_format(const io::File& file) {
  require(file.has_attribute("format") && file.string_attribute("format") == shard_format,
          "'{}' is an HDF5 file, but no token shard: it has no attribute format = \"{}\"; make shards with "
          "annulus-tokens pack",
          file.file(), shard_format);
  const std::int64_t version = file.integer_attribute("version");
  require(version == shard_version,
          "'{}' is a token shard of version {}, this program reads version {}: pack it again, or use a "
          "program that reads it",
          file.file(), version, shard_version);
}

TokenizerIdentity read_identity(const io::File& file) {
  TokenizerIdentity identity;
  identity.name = file.string_attribute("tokenizer");
  identity.vocabulary = file.integer_attribute("vocabulary");
  identity.end_of_document = file.integer_attribute("end_of_document");
  if (file.has_attribute("fingerprint")) identity.fingerprint = file.string_attribute("fingerprint");
  require(identity.vocabulary > 0 && identity.vocabulary <= std::numeric_limits<std::int32_t>::max(),
          "'{}': the attribute vocabulary is {}, which is not between 1 and 2^31 - 1: write the shard again",
          file.file(), identity.vocabulary);
  require(identity.end_of_document >= 0 && identity.end_of_document < identity.vocabulary,
          "'{}': the attribute end_of_document is {}, which is not below the vocabulary {}: "
          "write the shard again",
          file.file(), identity.end_of_document, identity.vocabulary);
  require(identity.name != "byte" || identity.vocabulary == 257,
          "'{}': the tokenizer is byte, which has a vocabulary of 257, "
          "but vocabulary is {}: write the shard again",
          file.file(), identity.vocabulary);
  require(identity.name != "sentencepiece" || (!identity.fingerprint.empty() && file.has("tokenizer_model")),
          "'{}': the tokenizer is sentencepiece, but the attribute fingerprint or the dataset "
          "tokenizer_model is missing: write the shard again",
          file.file());
  return identity;
}

std::int64_t length_of(const io::Dataset& dataset) {
  dataset.require_rank(1);
  require(dataset.elements() > 0, "'{}' is an empty shard: its dataset '{}' has no elements; delete it",
          dataset.file(), dataset.name());
  return static_cast<std::int64_t>(dataset.elements());
}

/// Calls `use` with one piece of a dataset of one dimension after the other, until it returns false: memory
/// stays small, whatever the file says.
template <class T, class Use>
void for_each_piece(const io::Dataset& dataset, const Use& use) {
  std::vector<T> piece;
  const std::uint64_t elements = dataset.elements();
  for (std::uint64_t at = 0; at < elements; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece_tokens, elements - at));
    dataset.read({{at}, {piece.size()}}, std::span<T>(piece));
    if (!use(std::span<const T>(piece))) return;
  }
}

/// A CRC-32, as an attribute says it.
std::uint32_t read_checksum(const io::File& file, const char* name) {
  const std::int64_t checksum = file.integer_attribute(name);
  require(checksum >= 0 && checksum <= std::numeric_limits<std::uint32_t>::max(),
          "'{}': the attribute {} is {}, which is no CRC-32: write the shard again", file.file(), name,
          checksum);
  return static_cast<std::uint32_t>(checksum);
}

/// The dataset loss_mask, where there is one; notes its checksum in the header.
std::optional<io::Dataset> open_loss_mask(const io::File& file, ShardHeader& header) {
  const bool values = file.has("loss_mask"), checksum = file.has_attribute("loss_mask_checksum");
  require(values == checksum,
          "'{}' has {}: give it both (the attribute is zlib.crc32 of the bytes of the dataset), or neither",
          header.path,
          values ? "the dataset loss_mask without the attribute loss_mask_checksum"
                 : "the attribute loss_mask_checksum without the dataset loss_mask");
  if (!values) return std::nullopt;
  io::Dataset mask = file.dataset("loss_mask");
  mask.require_type(DType::u8);
  require(length_of(mask) == header.tokens,
          "'{}': the dataset loss_mask has {} values for {} tokens: write one for each token", header.path,
          mask.elements(), header.tokens);
  header.loss_mask_checksum = read_checksum(file, "loss_mask_checksum");
  return mask;
}

io::Hyperslab blocks_at(std::int64_t start, std::int64_t stride, std::int64_t count, std::int64_t block) {
  const auto u = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {{u(start)}, {u(count)}, {u(count == 1 ? block : stride)}, {u(block)}};
}

/// Offsets of documents that are read at once; the first of each such row stays in memory.
constexpr std::size_t document_row = 4096;

/// Checks all offsets and gives the first of each row.
std::vector<std::int64_t> check_documents(const io::Dataset& documents, const ShardHeader& header) {
  std::vector<std::int64_t> firsts;
  std::int64_t last = -1;
  std::size_t index = 0;
  for_each_piece<std::uint64_t>(documents, [&](std::span<const std::uint64_t> stored) {
    for (const std::uint64_t start : stored) {
      const bool increases = index == 0 ? start == 0 : start > static_cast<std::uint64_t>(last);
      require(increases && start < static_cast<std::uint64_t>(header.tokens),
              "'{}': document {} starts at offset {}; starts must increase from 0 and lie below the number "
              "of tokens, {}: write the shard again",
              header.path, index, start, header.tokens);
      last = static_cast<std::int64_t>(start);
      if (index++ % document_row == 0) firsts.push_back(last);
    }
    return true;
  });
  return firsts;
}

}  // namespace

TokenShard::TokenShard(io::File file, io::Dataset tokens, io::Dataset documents,
                       std::optional<io::Dataset> loss_mask, ShardHeader header,
                       std::vector<std::int64_t> some_documents)
    : file_(std::move(file)),
      tokens_(std::move(tokens)),
      documents_(std::move(documents)),
      loss_mask_(std::move(loss_mask)),
      header_(std::move(header)),
      some_documents_(std::move(some_documents)) {}

std::vector<std::int64_t> TokenShard::documents(std::int64_t begin, std::int64_t end) const {
  const auto& firsts = some_documents_;
  const auto rows_before = [&](auto found) { return static_cast<std::uint64_t>(found - firsts.begin()); };
  const std::uint64_t from =
      rows_before(std::ranges::upper_bound(firsts, std::max(begin, std::int64_t{0}))) - 1;
  const std::uint64_t to = rows_before(std::ranges::lower_bound(firsts, end));
  std::vector<std::int64_t> found;
  std::vector<std::uint64_t> row;
  for (std::uint64_t at = from * document_row; at < to * document_row; at += document_row) {
    row.resize(std::min<std::uint64_t>(document_row, documents_.elements() - at));
    documents_.read({{at}, {row.size()}}, std::span<std::uint64_t>(row));
    for (const std::uint64_t stored : row) {
      const auto start = static_cast<std::int64_t>(stored);
      if (start < begin || start >= end) continue;
      require(found.empty() || start > found.back(),
              "'{}' has changed since it was opened: leave token shards alone while they are read",
              header_.path);
      found.push_back(start);
    }
  }
  return found;
}

TokenShard TokenShard::open(const std::filesystem::path& path) {
  io::File file = io::File::open(path);
  require_format(file);
  ShardHeader header;
  header.path = path.string();
  header.tokenizer = read_identity(file);
  if (file.has_attribute("creator")) header.creator = file.string_attribute("creator");
  header.checksum = read_checksum(file, "checksum");

  io::Dataset tokens = file.dataset("tokens");
  header.type = tokens.type();
  require(tokens.type() == DType::u8 || tokens.type() == DType::u16 || tokens.type() == DType::u32,
          "'{}': the dataset tokens holds {}: write it as u8, u16 or u32", header.path,
          name_of(tokens.type()));
  header.tokens = length_of(tokens);

  io::Dataset documents = file.dataset("documents");
  documents.require_type(DType::u64);
  header.documents = length_of(documents);
  require(header.documents <= header.tokens, "'{}' has {} documents but {} tokens: write the shard again",
          header.path, header.documents, header.tokens);
  require(header.documents <= max_documents,
          "'{}' has {} documents, a shard has at most {}: write several shards", header.path,
          header.documents, max_documents);
  std::vector<std::int64_t> some = check_documents(documents, header);
  std::optional<io::Dataset> loss_mask = open_loss_mask(file, header);
  return TokenShard(std::move(file), std::move(tokens), std::move(documents), std::move(loss_mask),
                    std::move(header), std::move(some));
}

void TokenShard::read_blocks(std::int64_t start, std::int64_t stride, std::int64_t count, std::int64_t block,
                             std::span<std::int32_t> out) const {
  const io::Hyperslab part = blocks_at(start, stride, count, block);
  with_token_type(header_.type, [&]<class T>(T) {
    std::vector<T> stored(part.elements());
    tokens_.read(part, std::span<T>(stored));
    std::transform(stored.begin(), stored.end(), out.begin(),
                   [](T id) { return static_cast<std::int32_t>(id); });
  });
}

void TokenShard::read_loss_mask(std::int64_t start, std::int64_t stride, std::int64_t count,
                                std::int64_t block, std::span<std::uint8_t> out) const {
  ANNULUS_ASSERT(loss_mask_.has_value());
  loss_mask_->read(blocks_at(start, stride, count, block), out);
  for (std::int64_t b = 0; b < count; ++b)
    require_loss_mask(start + b * stride,
                      out.subspan(static_cast<std::size_t>(b * block), static_cast<std::size_t>(block)));
}

void TokenShard::require_loss_mask(std::int64_t start, std::span<const std::uint8_t> values) const {
  const auto bad = std::ranges::find_if(values, [](std::uint8_t value) { return value > 1; });
  require(bad == values.end(),
          "'{}': the loss_mask of the token at offset {} is {}, which is neither 0 nor 1: the shard is "
          "damaged or was written wrongly; write it again",
          header_.path, start + (bad - values.begin()), bad == values.end() ? 0 : int{*bad});
}

void TokenShard::require_ids(std::int64_t start, std::span<const std::int32_t> ids) const {
  // As unsigned numbers, ids of 2^31 and more (which are negative here) are too large as well.
  const auto vocabulary = static_cast<std::uint32_t>(header_.tokenizer.vocabulary);
  const auto bad = std::find_if(
      ids.begin(), ids.end(), [=](std::int32_t id) { return static_cast<std::uint32_t>(id) >= vocabulary; });
  require(bad == ids.end(),
          "'{}': the token at offset {} has id {}, which is not below the vocabulary {}: the shard is "
          "damaged or was written wrongly; write it again",
          header_.path, start + (bad - ids.begin()), bad == ids.end() ? 0u : static_cast<std::uint32_t>(*bad),
          vocabulary);
}

void TokenShard::read(std::int64_t start, std::span<std::int32_t> out) const {
  if (out.empty()) return;
  const auto size = static_cast<std::int64_t>(out.size());
  read_blocks(start, size, 1, size, out);
  require_ids(start, out);
}

std::uint32_t TokenShard::compute_checksum(
    const std::function<bool(std::int64_t, std::span<const std::int32_t>)>& use) const {
  std::uint32_t crc = 0;
  with_token_type(header_.type, [&]<class T>(T) {
    std::vector<std::int32_t> ids;
    std::int64_t start = 0;
    for_each_piece<T>(tokens_, [&](std::span<const T> piece) {
      crc = io::crc32_of(piece, crc);
      ids.assign(piece.begin(), piece.end());
      const std::int64_t at = std::exchange(start, start + static_cast<std::int64_t>(piece.size()));
      return use(at, ids);
    });
  });
  for_each_piece<std::uint64_t>(documents_, [&](std::span<const std::uint64_t> piece) {
    crc = io::crc32_of(piece, crc);
    return true;
  });
  return crc;
}

TokenShard::LossMask TokenShard::sum_loss_mask(const std::stop_token& stop) const {
  ANNULUS_ASSERT(loss_mask_.has_value());
  LossMask sum;
  std::int64_t start = 0;
  for_each_piece<std::uint8_t>(*loss_mask_, [&](std::span<const std::uint8_t> piece) {
    sum.checksum = io::crc32_of(piece, sum.checksum);
    require_loss_mask(start, piece);
    sum.counted += std::ranges::count(piece, 1);
    start += std::ssize(piece);
    return !stop.stop_requested();
  });
  return sum;
}

std::unique_ptr<const Tokenizer> TokenShard::tokenizer() const {
  const TokenizerIdentity& identity = header_.tokenizer;
  if (identity.name == "byte") return make_byte_tokenizer();
  require(identity.name == "sentencepiece",
          "'{}': the tokenizer '{}' is not known here: decode its ids with the program that wrote them",
          header_.path, identity.name);
  const io::Dataset model = file_.dataset("tokenizer_model");
  require(length_of(model) <= largest_tokenizer_model,
          "'{}': the dataset tokenizer_model has {} bytes, more than {}: {}", header_.path, model.elements(),
          largest_tokenizer_model, "write the shard again");
  const auto bytes = file_.read<std::uint8_t>("tokenizer_model");
  std::string held(bytes.begin(), bytes.end());
  const std::string stored = fingerprint_of_model(held);
  require(stored == identity.fingerprint,
          "'{}': the embedded SentencePiece model has the fingerprint {}, the header says {}: the shard is "
          "damaged; copy or write it again",
          header_.path, stored, identity.fingerprint);
  auto tokenizer = make_sentencepiece_tokenizer(std::move(held), header_.path);
  require(tokenizer->identity() == identity,
          "'{}': the embedded SentencePiece model ({}, {} pieces) is not the one of the header ({}, {} "
          "pieces): write the shard again",
          header_.path, tokenizer->identity().fingerprint, tokenizer->identity().vocabulary,
          identity.fingerprint, identity.vocabulary);
  return tokenizer;
}

}  // namespace annulus::data
