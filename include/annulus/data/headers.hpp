#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/data/shard.hpp>

namespace annulus::data {

/// The headers of the shards that `paths` stand for (find_shards), in their order. Opens every shard. Throws
/// Error when one is no good.
std::vector<ShardHeader> read_headers(std::span<const std::filesystem::path> paths);

/// The headers as bytes (CBOR), for a process of the same build that is not to open all shards again.
std::string to_bytes(std::span<const ShardHeader> headers);

/// The inverse of to_bytes. Throws Error when the bytes are no headers.
std::vector<ShardHeader> headers_from_bytes(std::string_view bytes);

}  // namespace annulus::data
