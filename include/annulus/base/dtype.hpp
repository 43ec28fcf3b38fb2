#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

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
