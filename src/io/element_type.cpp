#include <annulus/io/element_type.hpp>

namespace annulus::io {

std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::u8:
      return "u8";
    case ElementType::u16:
      return "u16";
    case ElementType::u32:
      return "u32";
    case ElementType::u64:
      return "u64";
    case ElementType::i32:
      return "i32";
    case ElementType::i64:
      return "i64";
    case ElementType::f32:
      return "f32";
    case ElementType::f64:
      return "f64";
  }
  return "?";
}

}  // namespace annulus::io
