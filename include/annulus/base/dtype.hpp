#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <annulus/base/float16.hpp>

namespace annulus {

/// Element types of tensors in memory, on the wire and in files.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u8, u16, u32, u64 };

/// Bytes of one element.
constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::u8:
      return 1;
    case DType::bf16:
    case DType::f16:
    case DType::u16:
      return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32:
      return 4;
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
  }
  return 0;
}

/// "f32", "bf16", "f16", "f64", "i32", "i64", "u8", "u16", "u32" or "u64".
std::string_view name_of(DType type);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
DType parse_dtype(std::string_view name, std::string_view field = "dtype");

namespace detail {
template <DType type>
struct DTypeConstant {
  static constexpr DType value = type;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : DTypeConstant<DType::f32> {};
template <>
struct DTypeOf<bfloat16> : DTypeConstant<DType::bf16> {};
template <>
struct DTypeOf<float16> : DTypeConstant<DType::f16> {};
template <>
struct DTypeOf<double> : DTypeConstant<DType::f64> {};
template <>
struct DTypeOf<std::int32_t> : DTypeConstant<DType::i32> {};
template <>
struct DTypeOf<std::int64_t> : DTypeConstant<DType::i64> {};
template <>
struct DTypeOf<std::uint8_t> : DTypeConstant<DType::u8> {};
template <>
struct DTypeOf<std::uint16_t> : DTypeConstant<DType::u16> {};
template <>
struct DTypeOf<std::uint32_t> : DTypeConstant<DType::u32> {};
template <>
struct DTypeOf<std::uint64_t> : DTypeConstant<DType::u64> {};
}  // namespace detail

/// The DType of a C++ element type.
template <class T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

}  // namespace annulus
