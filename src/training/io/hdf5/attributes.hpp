#pragma once

#include <map>
#include <string>

#include "heaps_and_trees.hpp"
#include "object_header.hpp"
#include "types.hpp"

namespace annulus::io::hdf5 {

/// An attribute as it lies in the file.
struct StoredAttribute {
  StoredType type;
  std::optional<std::uint64_t> elements;  ///< nothing when its space is of a kind that Annulus does not read
  Bytes data;
};

using StoredAttributes = std::map<std::string, StoredAttribute>;

/// The attributes of an object: messages in its header, or a fractal heap where there are many.
StoredAttributes read_attributes(const Walk& walk, const ObjectHeader& header);

/// The value of an attribute whose type is text and that has one element.
std::string text_of(const Walk& walk, const StoredAttribute& attribute, GlobalHeap& heap);

/// CRC-32 over all attributes that are one string of variable length, in order of their names: each one's
/// name, a NUL, its value, a NUL. HDF5 has no checksum of its own for those.
std::uint32_t strings_crc32(const Walk& walk, const StoredAttributes& attributes, GlobalHeap& heap);

}  // namespace annulus::io::hdf5
