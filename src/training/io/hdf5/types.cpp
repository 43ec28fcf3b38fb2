#include "types.hpp"

namespace annulus::io::hdf5 {

namespace {

constexpr std::string_view type_text = "the datatype";

// Where IEEE 754 has the fields of a float: sign, exponent, mantissa.
bool is_ieee(std::uint32_t size, std::uint8_t sign, View properties) {
  struct Float {
    std::uint8_t sign, exponent, exponent_bits, mantissa_bits;
    std::uint32_t bias;
  };
  constexpr Float single{31, 23, 8, 23, 127}, twice{63, 52, 11, 52, 1023};
  if (size != 4 && size != 8) return false;
  const Float& f = size == 4 ? single : twice;
  return sign == f.sign && little_endian(properties.first(2)) == 0 &&
         little_endian(properties.subspan(2, 2)) == 8 * size && properties[4] == f.exponent &&
         properties[5] == f.exponent_bits && properties[6] == 0 && properties[7] == f.mantissa_bits &&
         little_endian(properties.subspan(8, 4)) == f.bias;
}

}  // namespace

std::optional<DType> StoredType::dtype() const {
  if (kind == Kind::real) return size == 4 ? DType::f32 : DType::f64;
  if (kind != Kind::integer) return std::nullopt;
  switch (size) {
    case 1:
      return is_signed ? std::nullopt : std::optional(DType::u8);
    case 2:
      return is_signed ? std::nullopt : std::optional(DType::u16);
    case 4:
      return is_signed ? DType::i32 : DType::u32;
    default:
      return is_signed ? DType::i64 : DType::u64;
  }
}

StoredType decode_type(const Walk& walk, View message) {
  enum : std::uint8_t { integer_class = 0, float_class = 1, string_class = 3, variable_class = 9 };
  Cursor fields(walk, message, type_text);
  const std::uint8_t kind = fields.u8() & 15;
  const View bits = fields.take(3);
  StoredType type;
  type.size = fields.u32();
  walk.require_intact(type.size > 0, "the datatype has a size of 0");
  if (kind == integer_class) {
    type.big_endian = (bits[0] & 1) != 0;
    type.is_signed = (bits[0] & 8) != 0;
    const bool whole = fields.u16() == 0 && fields.u16() == 8 * type.size;
    const bool known = type.size == 1 || type.size == 2 || type.size == 4 || type.size == 8;
    if (whole && known) type.kind = StoredType::Kind::integer;
  } else if (kind == float_class) {
    type.big_endian = (bits[0] & 1) != 0;
    const bool vax = (bits[0] & 64) != 0, implied_one = (bits[0] & 0x30) == 0x20;
    if (!vax && implied_one && is_ieee(type.size, bits[1], fields.take(12)))
      type.kind = StoredType::Kind::real;
  } else if (kind == string_class) {
    type.padded_with_spaces = (bits[0] & 15) == 2;
    type.kind = StoredType::Kind::fixed_text;
  } else if (kind == variable_class && (bits[0] & 15) == 1 && type.size == 16) {
    type.kind = StoredType::Kind::variable_text;
  }
  return type;
}

std::optional<Space> decode_space(const Walk& walk, View message) {
  constexpr std::uint8_t most_dimensions = 32, null_space = 2;
  Cursor fields(walk, message, "the dataspace");
  const std::uint8_t version = fields.u8(), rank = fields.u8(), flags = fields.u8();
  walk.require_intact(version == 1 || version == 2, "the dataspace has an unknown version");
  walk.require_intact(rank <= most_dimensions, "the dataspace has more than 32 dimensions");
  if (version == 1) {
    fields.skip(5);
  } else if (fields.u8() == null_space) {
    return std::nullopt;
  }
  Space space;
  space.extents.resize(rank);
  for (std::uint64_t& extent : space.extents) extent = fields.u64();
  space.limits = space.extents;
  if ((flags & 1) != 0) {
    for (std::uint64_t& limit : space.limits) limit = fields.u64();
  }
  return space;
}

std::optional<std::uint64_t> elements_of(const Extents& extents) {
  std::uint64_t product = 1;
  bool fits = true;
  for (const std::uint64_t extent : extents) {
    if (extent == 0) return 0;
    fits = fits && product <= ~std::uint64_t{0} / extent;
    if (fits) product *= extent;
  }
  return fits ? std::optional(product) : std::nullopt;
}

}  // namespace annulus::io::hdf5
