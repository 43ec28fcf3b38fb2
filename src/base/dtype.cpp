#include <annulus/base/dtype.hpp>

#include <array>

#include "base/nearest.hpp"

namespace annulus {

namespace {

/// Names of the types, in the order of DType.
constexpr std::array<std::string_view, 10> names{"f32", "bf16", "f16", "f64", "i32",
                                                 "i64", "u8",   "u16", "u32", "u64"};

}  // namespace

std::string_view name_of(DType type) {
  return names.at(static_cast<std::size_t>(type));
}

DType parse_dtype(std::string_view name, std::string_view field) {
  return static_cast<DType>(place_of_name(name, names, field));
}

}  // namespace annulus
