#include <annulus/training/checkpoint/state.hpp>

namespace annulus::checkpoint {

std::string_view name_of(Buffer buffer) {
  switch (buffer) {
    case Buffer::parameters:
      return "parameters";
    case Buffer::first_moment:
      return "first_moment";
    case Buffer::second_moment:
      return "second_moment";
  }
  return "?";
}

std::int64_t Tensor::elements() const {
  std::int64_t product = 1;
  for (const std::uint64_t extent : extents) product *= static_cast<std::int64_t>(extent);
  return product;
}

}  // namespace annulus::checkpoint
