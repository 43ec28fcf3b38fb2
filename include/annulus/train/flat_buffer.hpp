#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <annulus/core/queue.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::train {

/// A flat fp32 buffer of which the host reads and writes chunks, wherever its elements lie.
class FlatBuffer {
 public:
  /// What holds the elements. Ranges that are asked for lie inside and are not empty.
  class Storage {
   public:
    virtual ~Storage() = default;
    virtual std::int64_t size() const = 0;
    virtual void read(std::int64_t begin, std::span<float> values) const = 0;
    virtual void write(std::int64_t begin, std::span<const float> values) const = 0;
  };
  explicit FlatBuffer(std::shared_ptr<const Storage> storage) : storage_(std::move(storage)) {}

  /// The memory of a View, of the host or of a device. Refers to it.
  template <class Exec>
  FlatBuffer(const Exec& exec, const Array1<float, Exec>& values)
      : FlatBuffer(in_memory(Queue(exec), values.data(), static_cast<std::int64_t>(values.extent(0)))) {}

  std::int64_t size() const { return storage_->size(); }

  /// Copies the elements from `begin` on. Throws Error when they end outside the buffer.
  void read(std::int64_t begin, std::span<float> values) const;
  void write(std::int64_t begin, std::span<const float> values) const;

 private:
  static std::shared_ptr<const Storage> in_memory(Queue queue, float* data, std::int64_t size);

  std::shared_ptr<const Storage> storage_;
};

/// The flat buffers of a run: fp32 parameters and AdamW's moments, of one size.
struct Buffers {
  FlatBuffer parameters, first_moment, second_moment;
};

}  // namespace annulus::train
