#pragma once

#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/io/hdf5_writer.hpp>
#include <annulus/trace/recorder.hpp>

namespace annulus::trace {

/// Extents and names of the dimensions that a tensor has in the file.
struct FileShape {
  io::Extents extents;
  std::string dimensions;
};
FileShape file_shape(const detail::Rows& rows, const Sequences& sequences);

/// One tensor on its way from all ranks to rank 0's file, part by part. Every rank walks over the same parts;
/// which rows a rank has of a part follows from its shard.
class Gather {
 public:
  Gather(comm::Communicator& world, const std::vector<detail::Shard>& shards, std::int64_t tokens,
         const detail::Rows& mine);

  /// On ranks other than 0.
  void send();
  /// On rank 0: its own rows and those of all other ranks.
  void receive(io::DatasetWriter& to);

 private:
  /// Of one sequence: some heads, some tokens, all channels.
  struct Part {
    std::int64_t first_head, heads, first_token, tokens;
    RowRange of(const PositionMap& rows) const {
      return {rows.rows_below(first_token), rows.rows_below(first_token + tokens)};
    }
  };

  template <class Use>
  void for_parts(const Use& use) const;
  const PositionMap& rows_of(int rank) const { return shards_[static_cast<std::size_t>(rank)].rows; }
  void pack(std::int64_t in_batch, const Part& part);
  void take_from(int rank, std::int64_t in_batch, const Part& part);
  io::Hyperslab place_of(std::int64_t sequence, const Part& part) const;

  comm::Communicator& world_;
  const std::vector<detail::Shard>& shards_;
  const std::int64_t tokens_;
  const detail::Rows& mine_;
  const std::size_t row_bytes_;     // all channels of a token
  std::vector<std::byte> message_;  // one rank's rows of a part: (heads, rows, channels)
  std::vector<std::byte> part_;     // all rows: (heads, tokens, channels)
};

}  // namespace annulus::trace
