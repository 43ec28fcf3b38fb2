#include <annulus/train/flat_buffer.hpp>

#include <annulus/base/error.hpp>

namespace annulus::train {

namespace {

class Memory final : public FlatBuffer::Storage {
 public:
  Memory(Queue queue, float* data, std::int64_t size) : queue_(std::move(queue)), data_(data), size_(size) {}

  std::int64_t size() const override { return size_; }
  void read(std::int64_t begin, std::span<float> values) const override {
    queue_.copy_to_host(values.data(), data_ + begin, values.size_bytes());
    queue_.fence("annulus::train::FlatBuffer: the host reads the values");
  }
  void write(std::int64_t begin, std::span<const float> values) const override {
    queue_.copy_from_host(data_ + begin, values.data(), values.size_bytes());
    queue_.fence("annulus::train::FlatBuffer: the values on the host may go away");
  }

 private:
  Queue queue_;
  float* data_;
  std::int64_t size_;
};

void require_inside(std::int64_t begin, std::size_t count, std::int64_t size) {
  require(begin >= 0 && begin + static_cast<std::int64_t>(count) <= size,
          "elements [{}, {}) of a flat buffer of {} were asked for", begin,
          begin + static_cast<std::int64_t>(count), size);
}

}  // namespace

std::shared_ptr<const FlatBuffer::Storage> FlatBuffer::in_memory(Queue queue, float* data,
                                                                 std::int64_t size) {
  return std::make_shared<const Memory>(std::move(queue), data, size);
}

void FlatBuffer::read(std::int64_t begin, std::span<float> values) const {
  require_inside(begin, values.size(), size());
  if (!values.empty()) storage_->read(begin, values);
}

void FlatBuffer::write(std::int64_t begin, std::span<const float> values) const {
  require_inside(begin, values.size(), size());
  if (!values.empty()) storage_->write(begin, values);
}

}  // namespace annulus::train
