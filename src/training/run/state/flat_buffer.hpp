#pragma once

#include <cstdint>
#include <span>

#include <annulus/base/kokkos/queue.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus::training {

/// A flat fp32 buffer of which the host reads and writes chunks, wherever its elements lie. Refers to them.
class FlatBuffer {
 public:
  /// The memory of a View, of the host or of a device.
  template <class Exec>
  FlatBuffer(const Exec& exec, const Array1<float, Exec>& values)
      : queue_(exec), data_(values.data()), size_(static_cast<std::int64_t>(values.extent(0))) {}

  std::int64_t size() const { return size_; }
  /// What works on the elements.
  const Queue& queue() const { return queue_; }

  /// Copies the elements from `begin` on. Throws Error when they end outside the buffer.
  void read(std::int64_t begin, std::span<float> values) const;
  void write(std::int64_t begin, std::span<const float> values) const;
  /// Reads as work of `queue`, of the same device: the values are there when that is done.
  void enqueue_read(const Queue& queue, std::int64_t begin, std::span<float> values) const;

  /// Elements that lie in memory of the host, where they may change. Throws Error where they do not.
  std::span<const float> on_host(std::int64_t begin, std::int64_t count) const;

 private:
  void require_inside(std::int64_t begin, std::int64_t count) const;

  Queue queue_;
  float* data_;
  std::int64_t size_;
};

/// The flat buffers of a run: fp32 parameters and AdamW's moments, of one size.
struct Buffers {
  FlatBuffer parameters, first_moment, second_moment;
};

}  // namespace annulus::training
