#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/system/descriptor.hpp"

namespace annulus::data {

/// The ids of a shard that is being filled. A longer one than most_held lies in a file without a name, which
/// goes with the process however that ends.
class ShardTokens {
 public:
  /// Ids in memory, those of one part of a document aside.
  static constexpr std::int64_t most_held = std::int64_t{1} << 25;

  /// `beside` names the shard: the file lies in its folder.
  explicit ShardTokens(std::filesystem::path beside);

  /// Where ids are appended; settle() is called behind each part.
  std::vector<std::int32_t>& end() { return held_; }

  /// Brings the ids to the file when there are many. Throws Error that names the shard when there is no room.
  void settle();

  std::int64_t size() const { return written_ + std::ssize(held_); }

  /// Fills `out` with the ids from `start` on.
  void read(std::int64_t start, std::span<std::int32_t> out) const;

  /// Takes the first ids away.
  void erase_front(std::int64_t count);

 private:
  void write();

  std::filesystem::path beside_;
  std::vector<std::int32_t> held_;  // those behind the file's
  std::optional<Descriptor> file_;
  std::int64_t written_ = 0;  // ids in the file
};

}  // namespace annulus::data
