#include <annulus/train/flat_buffer.hpp>

#include <annulus/base/error.hpp>

namespace annulus::train {

namespace {

void require_inside(std::int64_t begin, std::size_t count, std::int64_t size) {
  require(begin >= 0 && begin + static_cast<std::int64_t>(count) <= size,
          "elements [{}, {}) of a flat buffer of {} were asked for", begin,
          begin + static_cast<std::int64_t>(count), size);
}

}  // namespace

void FlatBuffer::read(std::int64_t begin, std::span<float> values) const {
  require_inside(begin, values.size(), size_);
  if (values.empty()) return;
  queue_.copy_to_host(values.data(), data_ + begin, values.size_bytes());
  queue_.fence("annulus::train::FlatBuffer: the host reads the values");
}

void FlatBuffer::write(std::int64_t begin, std::span<const float> values) const {
  require_inside(begin, values.size(), size_);
  if (values.empty()) return;
  queue_.copy_from_host(data_ + begin, values.data(), values.size_bytes());
  queue_.fence("annulus::train::FlatBuffer: the values on the host may go away");
}

}  // namespace annulus::train
