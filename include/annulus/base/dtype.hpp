#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <annulus/base/division.hpp>

namespace annulus {

/// bfloat16 storage: 8 exponent and 7 fraction bits, two bytes on every back-end (Kokkos' own bhalf_t is an
/// alias of float on the CPU). Arithmetic happens in float; conversion rounds to nearest, ties to even.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  ANNULUS_FUNCTION explicit bfloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((word >> 16) | 0x40u);  // a NaN stays a (quiet) NaN
    } else {
      bits = static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
  }
  ANNULUS_FUNCTION operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

/// IEEE binary16 storage: 5 exponent and 10 fraction bits, two bytes on every back-end. Arithmetic happens in
/// float; conversion rounds to nearest, ties to even, overflow gives infinity.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  ANNULUS_FUNCTION explicit float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (word >> 16) & 0x8000u, magnitude = word & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
      half = 0x7c00u;
    } else if (magnitude <
               0x38800000u) {  // below 2^-14: subnormal; adding 0.5 aligns and rounds the fraction
      half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    } else {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }
  ANNULUS_FUNCTION operator float() const {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude < 0x400u) {  // zero and subnormals: magnitude · 2^-24, exact in float
      const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
      return sign ? -value : value;
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
};

static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2);

/// Element types of tensors in memory, on the wire and in files.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u8, u16, u32, u64 };

namespace detail {
template <class... Types>
struct ElementList {
  static constexpr std::array<std::size_t, sizeof...(Types)> sizes{sizeof(Types)...};
  template <class T>
  static constexpr std::array<bool, sizeof...(Types)> is{std::is_same_v<T, Types>...};
};
/// The types of elements, in the order of DType.
using Elements = ElementList<float, bfloat16, float16, double, std::int32_t, std::int64_t, std::uint8_t,
                             std::uint16_t, std::uint32_t, std::uint64_t>;

template <class T>
constexpr DType dtype_of_element() {
  std::size_t place = 0;
  while (!Elements::is<T>.at(place)) ++place;  // the compiler refuses other types
  return static_cast<DType>(place);
}
}  // namespace detail

/// Bytes of one element.
constexpr std::size_t size_of(DType type) {
  return detail::Elements::sizes[static_cast<std::size_t>(type)];
}

/// "f32", "bf16", "f16", "f64", "i32", "i64", "u8", "u16", "u32" or "u64".
std::string_view name_of(DType type);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
DType parse_dtype(std::string_view name, std::string_view field = "dtype");

/// The DType of a C++ element type.
template <class T>
inline constexpr DType dtype_of = detail::dtype_of_element<T>();

}  // namespace annulus
