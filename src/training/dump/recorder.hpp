#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>

#include "training/io/hdf5_files/hdf5_writer.hpp"

/// Named tensors of a computation in one file, in global token order, whatever the device, the layout and the
/// number of ranks: what annulus-diff compares and Python reads (docs/formats/tensor-dump.md). Computations
/// take a `Recorder*`; null records nothing and costs one comparison a tensor, outside all kernels.
namespace annulus::dump {

/// What a file covers.
struct Sequences {
  std::int64_t count = 1;   ///< sequences of one step, of all micro-batches and data-parallel groups
  std::int64_t tokens = 0;  ///< of each
};

/// Some of them, which a rank computes at once: first, first + stride, …
struct SequenceRange {
  std::int64_t first = 0, count = 1, stride = 1;
};

namespace detail {

/// One rank's part of the sequences.
struct RankRows {
  SequenceRange sequences;
  std::vector<PositionMap> rows;  ///< of all of them, or of each
  std::vector<RowRun> runs;       ///< what these borrow

  const PositionMap& of(std::int64_t sequence) const {
    return rows.size() == 1 ? rows.front() : rows[static_cast<std::size_t>(sequence)];
  }
};

/// The part of one tensor that a rank holds, in memory of the host: (batch, heads, rows, channels),
/// row-major. Without heads `rows` are those of the whole batch until Recorder divides them.
struct LocalRows {
  DType type;
  const void* data;
  std::int64_t batch = 1, heads = 1, rows = 0, channels = 1;
  bool has_heads = false, has_channels = false;  ///< whether the file has the dimension
};

}  // namespace detail

/// Takes the tensors of a computation on all ranks and brings them to rank 0, which writes them slab by
/// slab. Every call is collective: all ranks record the same names in the same order.
class Recorder {
 public:
  /// Which rows this rank computes from here on: `rows`, as many of each of the sequences, of which tensors
  /// have a batch. The ranks that share a sequence hold all its rows. Every rank has as many sequences.
  void set_rows(const SequenceRange& sequences, std::span<const PositionMap> rows);
  /// Which rows of each of the sequences this rank computes from here on: `rows`, of all of them.
  void set_rows(const SequenceRange& sequences, const PositionMap& rows) {
    set_rows(sequences, std::span(&rows, 1));
  }

  /// What the file covers.
  const Sequences& sequences() const { return sequences_; }

  /// This rank's rows of a tensor, contiguous: (batch, heads, rows, channels), (batch, heads, rows), (batch ·
  /// rows, channels) or (batch · rows). Waits for `exec`. A name may come again with other sequences.
  template <class Exec, class ViewType>
  void rows(const Exec& exec, const std::string& name, const ViewType& view) {
    const auto host = to_host(exec, name, view);
    constexpr std::size_t rank = ViewType::rank();
    const auto extent = [&](std::size_t d) { return static_cast<std::int64_t>(view.extent(d)); };
    detail::LocalRows local{.type = dtype_of<typename ViewType::non_const_value_type>, .data = host.data()};
    if constexpr (rank >= 3) {
      local.batch = extent(0);
      local.heads = extent(1);
    }
    local.rows = extent(rank >= 3 ? 2 : 0);
    local.has_heads = rank >= 3;
    local.has_channels = rank == 2 || rank == 4;
    if constexpr (rank == 2 || rank == 4) local.channels = extent(rank - 1);
    add_rows(name, local);
  }

  /// A vector or matrix that is the same on every rank (parameters, reduced gradients): rank 0 writes its
  /// own. Waits for `exec`.
  template <class Exec, class ViewType>
  void whole(const Exec& exec, const std::string& name, const ViewType& view) {
    static_assert(ViewType::rank() == 1 || ViewType::rank() == 2);
    if (file_ == nullptr) return;
    const auto host = to_host(exec, name, view);
    io::Extents extents;
    for (std::size_t d = 0; d < ViewType::rank(); ++d) extents.push_back(view.extent(d));
    add_whole(name, dtype_of<typename ViewType::non_const_value_type>, extents, host.data());
  }

  /// A number that is the same on every rank.
  void number(const std::string& name, double value);

 private:
  friend void record(const std::filesystem::path&, comm::Communicator&, const Sequences&,
                     const std::function<void(io::FileWriter&)>&, const std::function<void(Recorder&)>&);

  /// `file` is null on ranks other than 0.
  Recorder(comm::Communicator& world, const Sequences& sequences, io::FileWriter* file)
      : world_(world), sequences_(sequences), file_(file) {}

  template <class Exec, class ViewType>
  static auto to_host(const Exec& exec, const std::string& name, const ViewType& view) {
    static_assert(std::is_same_v<typename ViewType::array_layout, Kokkos::LayoutRight>);
    require(view.span_is_contiguous(), "the tensor '{}' is strided: record contiguous memory", name);
    exec.fence("annulus::trace: a tensor is recorded");
    return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  }

  void add_rows(const std::string& name, detail::LocalRows mine);
  void add_whole(const std::string& name, DType type, const io::Extents& extents, const void* data);
  io::DatasetWriter& dataset(const std::string& name, DType type, const io::Extents& extents,
                             const std::string& dimensions);

  comm::Communicator& world_;
  Sequences sequences_;
  io::FileWriter* file_;
  std::map<std::string, io::DatasetWriter> datasets_;  // of the tensors recorded
  std::vector<detail::RankRows> shards_;               // of all ranks
  std::int64_t order_ = 0;                             // of the next new tensor
};

/// Runs `body` and keeps what it records in the file `path`, which rank 0 writes atomically: it appears when
/// `body` is done. What `body` throws is thrown again behind that: a step that fails leaves what it had
/// recorded until then, with the attribute complete = 0. `describe` adds attributes to the root group.
/// Collective over `world`, whose rank 0 takes slabs of tensors of 16 MiB at a time from the others.
void record(const std::filesystem::path& path, comm::Communicator& world, const Sequences& sequences,
            const std::function<void(io::FileWriter& file)>& describe,
            const std::function<void(Recorder& recorder)>& body);

}  // namespace annulus::dump
