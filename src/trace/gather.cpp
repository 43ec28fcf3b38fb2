#include "trace/gather.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include <annulus/core/tensor.hpp>

#include "trace/stored.hpp"

namespace annulus::trace {

FileShape file_shape(const detail::Rows& rows, const Sequences& sequences) {
  FileShape shape{{static_cast<std::uint64_t>(sequences.count)}, "sequence"};
  const auto add = [&](std::int64_t extent, const char* name) {
    shape.extents.push_back(static_cast<std::uint64_t>(extent));
    shape.dimensions += name;
  };
  if (rows.has_heads) add(rows.heads, " head");
  add(sequences.tokens, " token");
  if (rows.has_channels) add(rows.channels, " channel");
  return shape;
}

Gather::Gather(comm::Communicator& world, const std::vector<detail::Shard>& shards, std::int64_t tokens,
               const detail::Rows& mine)
    : world_(world),
      shards_(shards),
      tokens_(tokens),
      mine_(mine),
      row_bytes_(static_cast<std::size_t>(mine.channels) * size_of(mine.type)) {}

template <class Use>
void Gather::for_parts(const Use& use) const {
  const io::Extents extents{static_cast<std::uint64_t>(mine_.heads), static_cast<std::uint64_t>(tokens_)};
  io::for_slabs(extents, std::max<std::size_t>(1, slab_bytes / row_bytes_), [&](const io::Hyperslab& p) {
    const auto number = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
    use(Part{number(p.start[0]), number(p.count[0]), number(p.start[1]), number(p.count[1])});
  });
}

/// Copies this rank's rows of a part to message_.
void Gather::pack(std::int64_t in_batch, const Part& part) {
  const RowRange rows = part.of(rows_of(world_.rank()));
  const std::size_t bytes = static_cast<std::size_t>(rows.size()) * row_bytes_;
  message_.resize(static_cast<std::size_t>(part.heads) * bytes);
  if (bytes == 0) return;
  const auto* const data = static_cast<const std::byte*>(mine_.data);
  for (std::int64_t h = 0; h < part.heads; ++h) {
    const std::int64_t row = (in_batch * mine_.heads + part.first_head + h) * mine_.rows + rows.begin;
    std::memcpy(message_.data() + static_cast<std::size_t>(h) * bytes,
                data + static_cast<std::size_t>(row) * row_bytes_, bytes);
  }
}

/// Brings one rank's rows of a part to their places in part_.
void Gather::take_from(int rank, std::int64_t in_batch, const Part& part) {
  const PositionMap& positions = rows_of(rank);
  const RowRange rows = part.of(positions);
  if (rank == world_.rank()) {
    pack(in_batch, part);
  } else if (!rows.empty()) {
    message_.resize(static_cast<std::size_t>(part.heads * rows.size()) * row_bytes_);
    const std::array<comm::Receive, 1> receive{{{message_.data(), message_.size(), rank}}};
    world_.exchange(Queue(HostExec()), {}, receive).wait();
  }
  const std::byte* from = message_.data();
  for (std::int64_t h = 0; h < part.heads; ++h) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row, from += row_bytes_) {
      const std::int64_t place = h * part.tokens + positions(row) - part.first_token;
      std::memcpy(part_.data() + static_cast<std::size_t>(place) * row_bytes_, from, row_bytes_);
    }
  }
}

io::Hyperslab Gather::place_of(std::int64_t sequence, const Part& part) const {
  io::Hyperslab place;
  const auto add = [&](std::int64_t start, std::int64_t count) {
    place.start.push_back(static_cast<std::uint64_t>(start));
    place.count.push_back(static_cast<std::uint64_t>(count));
  };
  add(sequence, 1);
  if (mine_.has_heads) add(part.first_head, part.heads);
  add(part.first_token, part.tokens);
  if (mine_.has_channels) add(0, mine_.channels);
  return place;
}

void Gather::send() {
  for (std::int64_t b = 0; b < mine_.batch; ++b) {
    for_parts([&](const Part& part) {
      pack(b, part);
      if (message_.empty()) return;
      const std::array<comm::Send, 1> send{{{message_.data(), message_.size(), 0}}};
      world_.exchange(Queue(HostExec()), send, {}).wait();
    });
  }
}

void Gather::receive(io::DatasetWriter& to) {
  std::map<std::int64_t, std::vector<int>> ranks_of;  // those that share sequences, by the first of these
  for (int rank = 0; rank < world_.size(); ++rank)
    ranks_of[shards_[static_cast<std::size_t>(rank)].sequences.first].push_back(rank);
  const std::int64_t stride = shards_.front().sequences.stride;
  for (const auto& [first_sequence, ranks] : ranks_of) {
    for (std::int64_t b = 0; b < mine_.batch; ++b) {
      for_parts([&](const Part& part) {
        part_.resize(static_cast<std::size_t>(part.heads * part.tokens) * row_bytes_);
        for (const int rank : ranks) take_from(rank, b, part);
        write_slab(to, place_of(first_sequence + b * stride, part), mine_.type, part_.data());
      });
    }
  }
}

}  // namespace annulus::trace
