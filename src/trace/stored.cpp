#include "trace/stored.hpp"

#include <span>
#include <vector>

namespace annulus::trace {

namespace {

template <class T>
void write_as_it_is(io::DatasetWriter& dataset, const io::Hyperslab& slab, const std::byte* data) {
  dataset.write(slab, std::span(reinterpret_cast<const T*>(data), slab.elements()));
}

template <class T>
void write_as_floats(io::DatasetWriter& dataset, const io::Hyperslab& slab, const std::byte* data) {
  const std::span values(reinterpret_cast<const T*>(data), slab.elements());
  const std::vector<float> floats(values.begin(), values.end());
  dataset.write(slab, std::span(floats));
}

}  // namespace

DType stored_type(DType type) {
  return type == DType::bf16 || type == DType::f16 ? DType::f32 : type;
}

void write_slab(io::DatasetWriter& dataset, const io::Hyperslab& slab, DType type, const std::byte* data) {
  switch (type) {
    case DType::bf16:
      return write_as_floats<bfloat16>(dataset, slab, data);
    case DType::f16:
      return write_as_floats<float16>(dataset, slab, data);
    case DType::f32:
      return write_as_it_is<float>(dataset, slab, data);
    case DType::f64:
      return write_as_it_is<double>(dataset, slab, data);
    case DType::i32:
      return write_as_it_is<std::int32_t>(dataset, slab, data);
    case DType::i64:
      return write_as_it_is<std::int64_t>(dataset, slab, data);
    case DType::u8:
      return write_as_it_is<std::uint8_t>(dataset, slab, data);
    case DType::u16:
      return write_as_it_is<std::uint16_t>(dataset, slab, data);
    case DType::u32:
      return write_as_it_is<std::uint32_t>(dataset, slab, data);
    case DType::u64:
      return write_as_it_is<std::uint64_t>(dataset, slab, data);
  }
}

}  // namespace annulus::trace
