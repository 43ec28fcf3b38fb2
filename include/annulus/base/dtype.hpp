#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <annulus/base/float16.hpp>

namespace annulus {

/// Element types of tensors in memory and on the wire.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64 };

/// Bytes of one element.
constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
  }
  return 0;
}

/// "f32", "bf16", "f16", "f64", "i32" or "i64".
std::string_view name_of(DType type);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
DType parse_dtype(std::string_view name, std::string_view field = "dtype");

/// The DType of a C++ element type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::i64;
};

template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace annulus
