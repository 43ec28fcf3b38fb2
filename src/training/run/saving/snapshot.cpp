#include "training/run/saving/snapshot.hpp"

#include <utility>

#include "training/run/saving/checkpoint_parts.hpp"

namespace annulus::training {

using checkpoint::Buffer;
using checkpoint::Slice;

Snapshot::Snapshot(std::vector<Slice> slices, const Buffers& buffers)
    : slices_(std::move(slices)),
      buffers_(buffers),
      elements_(elements_of(slices_)),
      copies_(buffers.parameters.queue().new_stream()),
      memory_(MemoryCategory::workspace, "annulus::training::snapshot",
              static_cast<std::size_t>(bytes(elements_))) {
  std::int64_t offset = 0;
  for (const Slice& slice : slices_) {
    packed_.push_back({slice.begin, slice.end, offset});
    offset += slice.size();
  }
}

std::span<float> Snapshot::copy_of(Buffer buffer) const {
  const auto elements = static_cast<std::size_t>(elements_);
  return memory_.as<float>().subspan(static_cast<std::size_t>(buffer) * elements, elements);
}

void Snapshot::take() {
  ready_.record(buffers_.parameters.queue());
  ready_.block(copies_);
  for (const Buffer buffer : checkpoint::buffers)
    for (std::size_t i = 0; i < slices_.size(); ++i)
      buffer_of(buffers_, buffer)
          .enqueue_read(copies_, slices_[i].offset,
                        copy_of(buffer).subspan(static_cast<std::size_t>(packed_[i].offset),
                                                static_cast<std::size_t>(slices_[i].size())));
  taken_.record(copies_);
}

std::span<const float> Snapshot::elements(Buffer buffer, std::int64_t offset, std::int64_t count) const {
  return copy_of(buffer).subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
}

}  // namespace annulus::training
