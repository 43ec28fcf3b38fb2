#include "training/data/shard.hpp"

#include <nlohmann/json.hpp>

#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>

namespace annulus::data {

using nlohmann::json;

std::vector<ShardHeader> read_headers(std::span<const std::filesystem::path> paths) {
  std::vector<ShardHeader> headers;
  for (const auto& path : find_shards(paths)) headers.push_back(TokenShard::open(path).header());
  return headers;
}

std::string to_bytes(std::span<const ShardHeader> headers) {
  json all = json::array();
  for (const ShardHeader& h : headers) {
    const TokenizerIdentity& t = h.tokenizer;
    all.push_back({h.path, t.name, t.vocabulary, t.end_of_document, t.fingerprint,
                   std::string(name_of(h.type)), h.tokens, h.documents, h.checksum, h.creator,
                   h.loss_mask_checksum ? json(*h.loss_mask_checksum) : json()});
  }
  const std::vector<std::uint8_t> bytes =
      json::to_cbor(all);  // JSON itself would refuse paths that are no UTF-8
  return {bytes.begin(), bytes.end()};
}

std::vector<ShardHeader> headers_from_bytes(std::string_view bytes) {
  const json all = json::from_cbor(bytes.begin(), bytes.end(), true, false);
  std::vector<ShardHeader> headers;
  try {
    require(all.is_array(), "the headers of token shards were expected, and other bytes came");
    for (const json& h : all)
      headers.push_back(
          {.path = h.at(0),
           .tokenizer = {h.at(1), h.at(2), h.at(3), h.at(4)},
           .type = parse_dtype(h.at(5).get<std::string>()),
           .tokens = h.at(6),
           .documents = h.at(7),
           .checksum = h.at(8),
           .creator = h.at(9),
           .loss_mask_checksum = h.at(10).is_null() ? std::nullopt : std::optional<std::uint32_t>(h.at(10))});
  } catch (const json::exception& error) {
    fail("what came in the place of headers of token shards cannot be read ({})", error.what());
  }
  return headers;
}

}  // namespace annulus::data
