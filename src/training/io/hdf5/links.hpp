#pragma once

#include <map>
#include <string>

#include "object_header.hpp"

namespace annulus::io::hdf5 {

/// What a name in a group stands for.
struct StoredLink {
  enum class Kind { hard, soft, external, other };
  Kind kind = Kind::hard;
  std::uint64_t address = no_address;  ///< of the object's header, for hard links
};

using StoredLinks = std::map<std::string, StoredLink>;

/// True when the header is that of a group.
bool is_group(const ObjectHeader& header);

/// The members of a group of any kind: a table of symbols, messages in its header, or a fractal heap.
StoredLinks read_links(const Walk& walk, const ObjectHeader& header);

}  // namespace annulus::io::hdf5
