#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace annulus::io {

/// Element types of datasets in files. 16-bit floats are stored as f32 or, bit for bit, as u16.
enum class ElementType : std::uint8_t { u8, u16, u32, u64, i32, i64, f32, f64 };

/// Bytes of one element.
constexpr std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::u8:
      return 1;
    case ElementType::u16:
      return 2;
    case ElementType::u32:
    case ElementType::i32:
    case ElementType::f32:
      return 4;
    case ElementType::u64:
    case ElementType::i64:
    case ElementType::f64:
      return 8;
  }
  return 0;
}

/// "u8", …, "f64".
std::string_view name_of(ElementType type);

namespace detail {
template <class T>
struct ElementTypeOf;
template <>
struct ElementTypeOf<std::uint8_t> {
  static constexpr ElementType value = ElementType::u8;
};
template <>
struct ElementTypeOf<std::uint16_t> {
  static constexpr ElementType value = ElementType::u16;
};
template <>
struct ElementTypeOf<std::uint32_t> {
  static constexpr ElementType value = ElementType::u32;
};
template <>
struct ElementTypeOf<std::uint64_t> {
  static constexpr ElementType value = ElementType::u64;
};
template <>
struct ElementTypeOf<std::int32_t> {
  static constexpr ElementType value = ElementType::i32;
};
template <>
struct ElementTypeOf<std::int64_t> {
  static constexpr ElementType value = ElementType::i64;
};
template <>
struct ElementTypeOf<float> {
  static constexpr ElementType value = ElementType::f32;
};
template <>
struct ElementTypeOf<double> {
  static constexpr ElementType value = ElementType::f64;
};
}  // namespace detail

/// The ElementType of a C++ type.
template <class T>
inline constexpr ElementType element_type_of = detail::ElementTypeOf<T>::value;

}  // namespace annulus::io
