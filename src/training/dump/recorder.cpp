#include "training/dump/recorder.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <span>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/base/version.hpp>

#include "attention/comm/gather_lists.hpp"
#include "attention/comm/watchdog.hpp"
#include "base/with_dtype.hpp"
#include "training/dump/format.hpp"

namespace annulus::dump {

namespace {

/// Bytes that rank 0 holds of a tensor at a time, and a message has at most (unless one row has more).
constexpr std::size_t slab_bytes = std::size_t{16} << 20;

/// The type that a file has for a tensor: 16-bit floats become f32, which holds them exactly.
DType stored_type(DType type) {
  return type == DType::bf16 || type == DType::f16 ? DType::f32 : type;
}

/// Writes a part of a tensor whose elements of `type` lie in memory one after the other.
void write_slab(io::DatasetWriter& dataset, const io::Hyperslab& slab, DType type, const std::byte* data) {
  const auto values = [&]<class T>(T) {
    return std::span(reinterpret_cast<const T*>(data), slab.elements());
  };
  const auto write = [&](auto element) { dataset.write(slab, values(element)); };
  const auto write_as_floats = [&](auto element) {
    const auto narrow = values(element);
    const std::vector<float> floats(narrow.begin(), narrow.end());
    dataset.write(slab, std::span(floats));
  };
  if (!with_dtype<bfloat16, float16>(type, write_as_floats))
    with_dtype<float, double, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
               std::uint64_t>(type, write);
}

/// Extents and names of the dimensions that a tensor has in the file.
struct FileShape {
  io::Extents extents;
  std::string dimensions;
};
FileShape file_shape(const detail::LocalRows& rows, const Sequences& sequences) {
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

/// One tensor on its way from all ranks to rank 0's file, part by part. Every rank walks over the same parts;
/// which rows a rank has of a part follows from its shard.
class TensorGather {
 public:
  TensorGather(comm::Communicator& world, const std::vector<detail::RankRows>& shards, std::int64_t tokens,
               const detail::LocalRows& mine)
      : world_(world),
        shards_(shards),
        tokens_(tokens),
        mine_(mine),
        row_bytes_(static_cast<std::size_t>(mine.channels) * size_of(mine.type)) {}

  /// Sends the rows of a rank other than 0.
  void send() {
    for (std::int64_t b = 0; b < mine_.batch; ++b) {
      for_parts([&](const TensorBlock& part) {
        pack(b, part);
        if (message_.empty()) return;
        const std::array<comm::Send, 1> send{{{message_.data(), message_.size(), 0}}};
        world_.exchange(Queue(HostExec()), send, {}).wait();
      });
    }
  }

  /// Receives, on rank 0, its own rows and those of all other ranks.
  void receive(io::DatasetWriter& to) {
    std::map<std::int64_t, std::vector<int>> ranks_of;  // those that share sequences, by the first of these
    for (int rank = 0; rank < world_.size(); ++rank)
      ranks_of[shards_[static_cast<std::size_t>(rank)].sequences.first].push_back(rank);
    const std::int64_t stride = shards_.front().sequences.stride;
    for (const auto& [first_sequence, ranks] : ranks_of) {
      for (std::int64_t b = 0; b < mine_.batch; ++b) {
        for_parts([&](const TensorBlock& part) {
          part_.resize(static_cast<std::size_t>(part.heads * part.tokens) * row_bytes_);
          for (const int rank : ranks) take_from(rank, b, part);
          write_slab(to, place_of(first_sequence + b * stride, part), mine_.type, part_.data());
        });
      }
    }
  }

 private:
  /// Some heads and some tokens of one sequence, with all channels.
  struct TensorBlock {
    std::int64_t first_head, heads, first_token, tokens;
    RowRange of(const PositionMap& rows) const {
      return {rows.rows_below(first_token), rows.rows_below(first_token + tokens)};
    }
  };

  template <class Use>
  void for_parts(const Use& use) const {
    const io::Extents extents{static_cast<std::uint64_t>(mine_.heads), static_cast<std::uint64_t>(tokens_)};
    io::for_slabs(extents, std::max<std::size_t>(1, slab_bytes / row_bytes_), [&](const io::Hyperslab& p) {
      const auto number = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
      use(TensorBlock{number(p.start[0]), number(p.count[0]), number(p.start[1]), number(p.count[1])});
    });
  }

  /// Copies this rank's rows of a part to message_.
  void pack(std::int64_t in_batch, const TensorBlock& part) {
    const RowRange rows = part.of(rows_of(world_.rank(), in_batch));
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
  void take_from(int rank, std::int64_t in_batch, const TensorBlock& part) {
    const PositionMap& positions = rows_of(rank, in_batch);
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

  io::Hyperslab place_of(std::int64_t sequence, const TensorBlock& part) const {
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

  const PositionMap& rows_of(int rank, std::int64_t in_batch) const {
    return shards_[static_cast<std::size_t>(rank)].of(in_batch);
  }

  comm::Communicator& world_;
  const std::vector<detail::RankRows>& shards_;
  const std::int64_t tokens_;
  const detail::LocalRows& mine_;
  const std::size_t row_bytes_;     // all channels of a token
  std::vector<std::byte> message_;  // one rank's rows of a part: (heads, rows, channels)
  std::vector<std::byte> part_;     // all rows: (heads, tokens, channels)
};

}  // namespace

void Recorder::set_rows(const SequenceRange& sequences, std::span<const PositionMap> rows) {
  std::vector<RowRun> runs;
  for (const PositionMap& of_sequence : rows)
    if (of_sequence.runs != nullptr)
      runs.insert(runs.end(), of_sequence.runs, of_sequence.runs + of_sequence.run_count + 1);
  const auto all_sequences = comm::gather_lists(world_, std::vector{sequences});
  auto all_rows = comm::gather_lists(world_, std::vector(rows.begin(), rows.end()));
  auto all_runs = comm::gather_lists(world_, std::move(runs));
  shards_.clear();
  std::map<std::int64_t, std::vector<std::int64_t>> rows_of;  // of each sequence of a batch, by the first
  for (std::size_t rank = 0; rank < all_rows.size(); ++rank) {
    detail::RankRows& shard = shards_.emplace_back(all_sequences[rank].front(), std::move(all_rows[rank]),
                                                   std::move(all_runs[rank]));
    const RowRun* next = shard.runs.data();
    for (PositionMap& of_sequence : shard.rows) {
      if (of_sequence.runs == nullptr) continue;
      of_sequence.runs = std::exchange(next, next + of_sequence.run_count + 1);
    }
    require(shard.sequences.count == sequences.count && shard.sequences.stride == sequences.stride,
            "a rank computes {} sequences at once and another one {}: all must compute as many",
            sequences.count, shard.sequences.count);
    std::vector<std::int64_t>& counts = rows_of[shard.sequences.first];
    counts.resize(static_cast<std::size_t>(sequences.count));
    for (std::int64_t b = 0; b < sequences.count; ++b)
      counts[static_cast<std::size_t>(b)] += shard.of(b).count;
  }
  for (const auto& [sequence, counts] : rows_of)
    for (const std::int64_t count : counts)
      require(count == sequences_.tokens,
              "the ranks that compute sequence {} hold {} of its {} rows: all of them must be recorded",
              sequence, count, sequences_.tokens);
}

void Recorder::add_rows(const std::string& name, detail::LocalRows mine) {
  const comm::Watchdog::ActivityScope activity(world_.watchdog(),
                                               "the dump of '" + name + "', which rank 0 writes");
  require(!shards_.empty(), "the tensor '{}' was recorded before its rows were told: call set_rows first",
          name);
  const detail::RankRows& shard = shards_[static_cast<std::size_t>(world_.rank())];
  const SequenceRange& sequences = shard.sequences;
  const PositionMap& positions = shard.of(0);
  const std::int64_t rows = mine.has_heads ? positions.count : sequences.count * positions.count;
  require(mine.rows == rows, "the tensor '{}' has {} rows, this rank computes {}", name, mine.rows, rows);
  require(!mine.has_heads || mine.batch == sequences.count,
          "the tensor '{}' has {} sequences, this rank computes {}", name, mine.batch, sequences.count);
  mine.batch = sequences.count;
  mine.rows = positions.count;
  TensorGather gather(world_, shards_, sequences_.tokens, mine);
  if (file_ == nullptr) return gather.send();
  const FileShape shape = file_shape(mine, sequences_);
  io::DatasetWriter& to = dataset(name, mine.type, shape.extents, shape.dimensions);
  gather.receive(to);
}

void Recorder::add_whole(const std::string& name, DType type, const io::Extents& extents, const void* data) {
  io::DatasetWriter& to = dataset(name, type, extents, extents.size() == 1 ? "element" : "row column");
  const auto* from = static_cast<const std::byte*>(data);
  io::for_slabs(extents, slab_bytes / size_of(type), [&](const io::Hyperslab& slab) {
    write_slab(to, slab, type, from);
    from += slab.elements() * size_of(type);
  });
}

void Recorder::number(const std::string& name, double value) {
  if (file_ != nullptr) add_whole(name, DType::f64, {1}, &value);
}

/// A new tensor, or one of which other sequences are there.
io::DatasetWriter& Recorder::dataset(const std::string& name, DType type, const io::Extents& extents,
                                     const std::string& dimensions) {
  if (const auto found = datasets_.find(name); found != datasets_.end()) {
    io::DatasetWriter& known = found->second;
    require(known.extents() == extents && known.type() == stored_type(type),
            "the tensor '{}' was recorded before with another shape or type", name);
    return known;
  }
  io::DatasetWriter& made =
      datasets_.emplace(name, file_->create_dataset(name, stored_type(type), extents)).first->second;
  made.set_attribute(format::order_attribute, order_++);
  made.set_attribute(format::dtype_attribute, name_of(type));
  made.set_attribute(format::dimensions_attribute, dimensions);
  return made;
}

void record(const std::filesystem::path& path, comm::Communicator& world, const Sequences& sequences,
            const std::function<void(io::FileWriter&)>& describe,
            const std::function<void(Recorder&)>& body) {
  const auto run = [&](io::FileWriter* file) {
    Recorder recorder(world, sequences, file);
    body(recorder);
  };
  if (world.rank() != 0) return run(nullptr);
  std::exception_ptr failure;
  io::write_hdf5_atomically(path, [&](io::FileWriter& file) {
    file.set_attribute(format::format_attribute, format::name);
    file.set_attribute(format::version_attribute, format::version);
    file.set_attribute("git_hash", git_hash());
    describe(file);
    try {
      run(&file);
    } catch (...) {  // what came before is what shows why
      failure = std::current_exception();
    }
    file.set_attribute(format::complete_attribute, failure ? 0 : 1);
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace annulus::dump
