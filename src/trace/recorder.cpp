#include <annulus/trace/recorder.hpp>

#include <exception>
#include <map>
#include <span>

#include <annulus/base/version.hpp>
#include <annulus/comm/watchdog.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/trace/format.hpp>

#include "trace/gather.hpp"
#include "trace/stored.hpp"

namespace annulus::trace {

void Recorder::set_rows(const SequenceRange& sequences, const PositionMap& rows) {
  const detail::Shard mine{sequences, rows};
  shards_.resize(static_cast<std::size_t>(world_.size()));
  world_.all_gather(Queue(HostExec()), &mine, shards_.data(), sizeof mine);
  std::map<std::int64_t, std::int64_t> rows_of;
  for (const detail::Shard& shard : shards_) {
    require(shard.sequences.count == sequences.count && shard.sequences.stride == sequences.stride,
            "a rank computes {} sequences at once and another one {}: all must compute as many",
            sequences.count, shard.sequences.count);
    rows_of[shard.sequences.first] += shard.rows.count;
  }
  for (const auto& [sequence, count] : rows_of)
    require(count == sequences_.tokens,
            "the ranks that compute sequence {} hold {} of its {} rows: all of them must be recorded",
            sequence, count, sequences_.tokens);
}

void Recorder::add_rows(const std::string& name, detail::Rows mine) {
  const comm::Watchdog::ActivityScope activity(world_.watchdog(),
                                               "the dump of '" + name + "', which rank 0 writes");
  require(!shards_.empty(), "the tensor '{}' was recorded before its rows were told: call set_rows first",
          name);
  const auto& [sequences, positions] = shards_[static_cast<std::size_t>(world_.rank())];
  const std::int64_t rows = mine.has_heads ? positions.count : sequences.count * positions.count;
  require(mine.rows == rows, "the tensor '{}' has {} rows, this rank computes {}", name, mine.rows, rows);
  require(!mine.has_heads || mine.batch == sequences.count,
          "the tensor '{}' has {} sequences, this rank computes {}", name, mine.batch, sequences.count);
  mine.batch = sequences.count;
  mine.rows = positions.count;
  Gather gather(world_, shards_, sequences_.tokens, mine);
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

}  // namespace annulus::trace
