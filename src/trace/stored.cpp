#include "trace/stored.hpp"

#include <span>
#include <vector>

namespace annulus::trace {

namespace {

template <class T>
void write_as_it_is(io::DatasetWriter& dataset, const io::Hyperslab& piece, const std::byte* data) {
  dataset.write(piece, std::span(reinterpret_cast<const T*>(data), piece.elements()));
}

template <class T>
void write_as_floats(io::DatasetWriter& dataset, const io::Hyperslab& piece, const std::byte* data) {
  const std::span values(reinterpret_cast<const T*>(data), piece.elements());
  const std::vector<float> floats(values.begin(), values.end());
  dataset.write(piece, std::span(floats));
}

}  // namespace

DType stored_type(DType type) {
  return type == DType::bf16 || type == DType::f16 ? DType::f32 : type;
}

void write_piece(io::DatasetWriter& dataset, const io::Hyperslab& piece, DType type, const std::byte* data) {
  switch (type) {
    case DType::bf16:
      return write_as_floats<bfloat16>(dataset, piece, data);
    case DType::f16:
      return write_as_floats<float16>(dataset, piece, data);
    case DType::f32:
      return write_as_it_is<float>(dataset, piece, data);
    case DType::f64:
      return write_as_it_is<double>(dataset, piece, data);
    case DType::i32:
      return write_as_it_is<std::int32_t>(dataset, piece, data);
    case DType::i64:
      return write_as_it_is<std::int64_t>(dataset, piece, data);
    case DType::u8:
      return write_as_it_is<std::uint8_t>(dataset, piece, data);
    case DType::u16:
      return write_as_it_is<std::uint16_t>(dataset, piece, data);
    case DType::u32:
      return write_as_it_is<std::uint32_t>(dataset, piece, data);
    case DType::u64:
      return write_as_it_is<std::uint64_t>(dataset, piece, data);
  }
}

}  // namespace annulus::trace
