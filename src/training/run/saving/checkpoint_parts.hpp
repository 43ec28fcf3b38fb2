#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "training/checkpoint/manifest.hpp"
#include "training/model/parameters.hpp"
#include "training/parameter_sharding/partition.hpp"
#include "training/run/state/flat_buffer.hpp"

/// Between a checkpoint, which knows tensors, and the flat buffers of a rank.
namespace annulus::training {

/// The tensors of a model, in order.
std::vector<checkpoint::StoredTensor> tensors_of(const model::ParameterMap& map);

/// What of its part of each unit a rank saves and reads, where `copies` ranks hold the same part and this is
/// the `copy`-th of them. Offsets are those of Partition's shards.
std::vector<checkpoint::Slice> shares_of_shard(const parameter_sharding::Partition& partition, int rank,
                                               int copy, int copies);
/// What a rank saves and reads where each of partition.ranks() ranks holds the whole model; offsets count
/// from its start.
std::vector<checkpoint::Slice> shares_of_whole(const parameter_sharding::Partition& partition, int rank);

/// Elements of all slices.
std::int64_t elements_of(std::span<const checkpoint::Slice> slices);

/// The buffer of that kind.
const FlatBuffer& buffer_of(const Buffers& buffers, checkpoint::Buffer kind);

/// Where elements [begin, begin + count) of a model lie, tensor by tensor: use(tensor, first element in it,
/// elements, at); `at` counts from 0 to count.
template <class OfTensor>
void for_each_tensor(const model::ParameterMap& map, std::int64_t begin, std::int64_t count,
                     const OfTensor& use) {
  for (std::int64_t at = 0; at < count;) {
    const model::Parameter& tensor = map.at(begin + at);
    const std::int64_t first = begin + at - tensor.offset, size = std::min(tensor.size() - first, count - at);
    use(tensor, first, size, at);
    at += size;
  }
}

/// Reads the elements of `slices`, and no others, into the buffers. Throws Error as Checkpoint::read does.
/// `seen` gets the bytes that were read so far.
void load_slices(const checkpoint::Checkpoint& from, const model::ParameterMap& map,
                 std::span<const checkpoint::Slice> slices, const Buffers& buffers,
                 const std::function<void(std::int64_t bytes)>& seen = {});

}  // namespace annulus::training
