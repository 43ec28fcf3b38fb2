#include <annulus/base/dtype.hpp>
#include <annulus/base/error.hpp>
#include <array>

namespace annulus {

namespace {
constexpr std::array all_types{DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64};
}

std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::f64:
      return "f64";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
  }
  return "?";
}

DType parse_dtype(std::string_view name, std::string_view field) {
  for (const DType type : all_types)
    if (name == name_of(type)) return type;
  fail("{} = '{}' is no element type: use one of f32, bf16, f16, f64, i32, i64", field, name);
}

}  // namespace annulus
