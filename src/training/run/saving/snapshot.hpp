#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/memory/pinned.hpp"
#include "training/checkpoint/manifest.hpp"
#include "training/run/state/flat_buffer.hpp"

namespace annulus::training {

/// A copy in pinned memory of the host of what a rank saves: taken while the device goes on, written while
/// the rank trains. Counts as MemoryCategory::workspace.
class Snapshot {
 public:
  /// Bytes that it takes.
  static std::int64_t bytes(std::int64_t elements) {
    return elements * static_cast<std::int64_t>(checkpoint::buffer_count * sizeof(float));
  }

  /// Takes the memory for copies of these slices of `buffers`, which outlive it.
  Snapshot(std::vector<checkpoint::Slice> slices, const Buffers& buffers);

  /// Starts to copy what the work enqueued so far leaves in the buffers. They must not change before wait().
  void take();
  /// The host waits until the copy is there.
  void wait() const { taken_.wait(); }

  /// The slices, whose offsets count from the beginning of the copy.
  const std::vector<checkpoint::Slice>& slices() const { return packed_; }
  std::span<const float> elements(checkpoint::Buffer buffer, std::int64_t offset, std::int64_t count) const;

 private:
  std::span<float> copy_of(checkpoint::Buffer buffer) const;

  std::vector<checkpoint::Slice> slices_, packed_;
  Buffers buffers_;
  std::int64_t elements_;
  Queue copies_;  // a stream of its own on a device
  PinnedBuffer memory_;
  Event ready_, taken_;
};

}  // namespace annulus::training
