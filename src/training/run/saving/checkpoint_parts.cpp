#include "training/run/saving/checkpoint_parts.hpp"

#include <array>
#include <cstddef>

#include <annulus/base/division.hpp>
#include <annulus/training/checkpoint/reader.hpp>

#include "training/io/hdf5_files/hdf5.hpp"

namespace annulus::training {

using checkpoint::Buffer;
using checkpoint::Slice;
using checkpoint::StoredTensor;

std::vector<StoredTensor> tensors_of(const model::ParameterMap& map) {
  std::vector<StoredTensor> tensors;
  for (const model::Parameter& p : map.all()) {
    const auto rows = static_cast<std::uint64_t>(p.rows), columns = static_cast<std::uint64_t>(p.columns);
    tensors.push_back({p.name, p.rows == 1 ? io::Extents{columns} : io::Extents{rows, columns}});
  }
  return tensors;
}

std::vector<Slice> shares_of_shard(const parameter_sharding::Partition& partition, int rank, int copy,
                                   int copies) {
  std::vector<Slice> slices;
  for (int unit = 0; unit < partition.units(); ++unit) {
    const model::ParameterUnit part = partition.part(unit, rank);
    const std::int64_t size = ceil_divide(part.size(), copies);
    const std::int64_t begin = std::min(part.end, part.begin + copy * size),
                       end = std::min(part.end, begin + size);
    if (begin < end) slices.push_back({begin, end, partition.offset_in_shard(unit) + begin - part.begin});
  }
  return slices;
}

std::vector<Slice> shares_of_whole(const parameter_sharding::Partition& partition, int rank) {
  std::vector<Slice> slices = shares_of_shard(partition, rank, 0, 1);
  for (Slice& slice : slices) slice.offset = slice.begin;
  return slices;
}

std::int64_t elements_of(std::span<const Slice> slices) {
  std::int64_t elements = 0;
  for (const Slice& slice : slices) elements += slice.size();
  return elements;
}

const FlatBuffer& buffer_of(const Buffers& buffers, Buffer kind) {
  constexpr std::array members{&Buffers::parameters, &Buffers::first_moment, &Buffers::second_moment};
  return buffers.*members.at(static_cast<std::size_t>(kind));
}

void load_slices(const checkpoint::Checkpoint& from, const model::ParameterMap& map,
                 std::span<const Slice> slices, const Buffers& buffers,
                 const std::function<void(std::int64_t)>& seen) {
  std::int64_t bytes = 0;
  for (const Slice& slice : slices)
    for_each_tensor(
        map, slice.begin, slice.size(),
        [&](const model::Parameter& tensor, std::int64_t first, std::int64_t size, std::int64_t at) {
          for (const Buffer kind : checkpoint::buffers)
            from.read(kind, tensor.name, first, size,
                      [&](std::int64_t inside, std::span<const float> values) {
                        buffer_of(buffers, kind).write(slice.offset + at + inside, values);
                        bytes += static_cast<std::int64_t>(values.size_bytes());
                        if (seen) seen(bytes);
                      });
        });
}

}  // namespace annulus::training
