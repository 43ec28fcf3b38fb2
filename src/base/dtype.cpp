#include <annulus/base/dtype.hpp>

#include <array>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus {

namespace {

using namespace std::string_view_literals;

constexpr std::array names{std::pair{DType::f32, "f32"sv}, std::pair{DType::bf16, "bf16"sv},
                           std::pair{DType::f16, "f16"sv}, std::pair{DType::f64, "f64"sv},
                           std::pair{DType::i32, "i32"sv}, std::pair{DType::i64, "i64"sv},
                           std::pair{DType::u8, "u8"sv},   std::pair{DType::u16, "u16"sv},
                           std::pair{DType::u32, "u32"sv}, std::pair{DType::u64, "u64"sv}};

}  // namespace

std::string_view name_of(DType type) {
  for (const auto& [known, name] : names)
    if (known == type) return name;
  return "?";
}

DType parse_dtype(std::string_view name, std::string_view field) {
  for (const auto& [type, known] : names)
    if (known == name) return type;
  fail("{} = '{}' is no element type: use one of f32, bf16, f16, f64, i32, i64, u8, u16, u32, u64", field,
       name);
}

}  // namespace annulus
