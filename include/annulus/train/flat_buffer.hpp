#pragma once

#include <cstdint>
#include <span>

#include <annulus/core/queue.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::train {

/// A flat fp32 buffer in the memory of the host or of a device, of which the host reads and writes pieces.
/// Refers to the memory of the View that it is made from.
class FlatBuffer {
 public:
  template <class Exec>
  FlatBuffer(const Exec& exec, const Array1<float, Exec>& values)
      : queue_(exec), data_(values.data()), size_(static_cast<std::int64_t>(values.extent(0))) {}

  std::int64_t size() const { return size_; }

  /// Copies the elements from `begin` on. Throws Error when they end outside the buffer.
  void read(std::int64_t begin, std::span<float> values) const;
  void write(std::int64_t begin, std::span<const float> values) const;

 private:
  Queue queue_;
  float* data_;
  std::int64_t size_;
};

/// The flat buffers of a run: fp32 parameters and AdamW's moments, (map.size()) each.
struct Buffers {
  FlatBuffer parameters, first_moment, second_moment;
};

}  // namespace annulus::train
