#include "training/run/state/flat_buffer.hpp"

#include <annulus/base/error.hpp>

namespace annulus::training {

void FlatBuffer::require_inside(std::int64_t begin, std::int64_t count) const {
  require(begin >= 0 && begin + count <= size_, "elements [{}, {}) of a flat buffer of {} were asked for",
          begin, begin + count, size_);
}

void FlatBuffer::read(std::int64_t begin, std::span<float> values) const {
  enqueue_read(queue_, begin, values);
  queue_.fence("annulus::training::FlatBuffer: the host reads the values");
}

void FlatBuffer::enqueue_read(const Queue& queue, std::int64_t begin, std::span<float> values) const {
  require_inside(begin, std::ssize(values));
  if (!values.empty()) queue.copy_to_host(values.data(), data_ + begin, values.size_bytes());
}

void FlatBuffer::write(std::int64_t begin, std::span<const float> values) const {
  require_inside(begin, std::ssize(values));
  if (values.empty()) return;
  queue_.copy_from_host(data_ + begin, values.data(), values.size_bytes());
  queue_.fence("annulus::training::FlatBuffer: the values on the host may go away");
}

std::span<const float> FlatBuffer::on_host(std::int64_t begin, std::int64_t count) const {
  require_inside(begin, count);
  require(queue_.is_host(), "elements of a flat buffer in memory of a device were asked for as the host's");
  return {data_ + begin, static_cast<std::size_t>(count)};
}

}  // namespace annulus::training
