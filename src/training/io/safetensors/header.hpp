#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "training/io/safetensors/safetensors.hpp"

namespace annulus::io::safetensors {

inline constexpr std::string_view metadata_name = "__metadata__";

static_assert(std::endian::native == std::endian::little, "lengths and elements are little-endian");

/// A type of the format.
struct Type {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<DType> dtype;
};
inline constexpr std::array types{
    Type{"F32", 4, DType::f32},       Type{"BF16", 2, DType::bf16},     Type{"F16", 2, DType::f16},
    Type{"F64", 8, DType::f64},       Type{"I64", 8, DType::i64},       Type{"I32", 4, DType::i32},
    Type{"U8", 1, DType::u8},         Type{"U16", 2, DType::u16},       Type{"U32", 4, DType::u32},
    Type{"U64", 8, DType::u64},       Type{"I8", 1, std::nullopt},      Type{"I16", 2, std::nullopt},
    Type{"BOOL", 1, std::nullopt},    Type{"F8_E4M3", 1, std::nullopt}, Type{"F8_E5M2", 1, std::nullopt},
    Type{"F8_E8M0", 1, std::nullopt}, Type{"C64", 8, std::nullopt}};
const Type* find_type(std::string_view name);
const Type& type_of(DType dtype);

/// Bytes of a tensor; none when 64 bits do not hold the number.
std::optional<std::uint64_t> bytes_of(const Extents& extents, std::uint64_t element_bytes);

struct Header {
  std::vector<SafetensorsTensor> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Reads a header of which `data_bytes` bytes of elements follow. Throws Error that names `path`.
Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path);

/// The length of the header and the header, padded with spaces to a multiple of eight bytes.
std::string header_text(const Header& header, const std::string& path);

}  // namespace annulus::io::safetensors
