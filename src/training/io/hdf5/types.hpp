#pragma once

#include <optional>

#include <annulus/base/dtype.hpp>

#include "source.hpp"
#include "training/io/hdf5_files/hdf5.hpp"

namespace annulus::io::hdf5 {

/// The type of elements in a file.
struct StoredType {
  enum class Kind { integer, real, fixed_text, variable_text, other };
  Kind kind = Kind::other;
  std::uint32_t size = 0;  ///< bytes of one element
  bool is_signed = false, big_endian = false, padded_with_spaces = false;

  /// The DType that holds such elements; nothing where none does.
  std::optional<DType> dtype() const;
};

/// Decodes a datatype message. Types that Annulus does not use are `other`.
StoredType decode_type(const Walk& walk, View message);

/// Extents of a dataset or an attribute, none for a scalar, and what they may grow to (as they are where the
/// file says nothing; all ones for without limit).
struct Space {
  Extents extents, limits;
};

/// Decodes a dataspace message. Nothing for a space without elements ("null").
std::optional<Space> decode_space(const Walk& walk, View message);

/// The product of the extents, or nothing where it does not fit into 64 bits.
std::optional<std::uint64_t> elements_of(const Extents& extents);

}  // namespace annulus::io::hdf5
