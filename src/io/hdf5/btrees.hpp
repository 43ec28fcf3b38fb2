#pragma once

#include <functional>

#include "source.hpp"

namespace annulus::io::hdf5 {

/// Calls `use(key, child)` for every child of the leaves of a B-tree of version 1: the nodes of symbols of a
/// group (`type` 0) or the chunks of a dataset (1), whose keys have `key_bytes`.
void for_each_child(const Walk& walk, std::uint64_t root, std::uint8_t type, std::uint64_t key_bytes,
                    const std::function<void(View key, std::uint64_t child)>& use);

/// Calls `use` for every record of a B-tree of version 2, whose type is `type`.
void for_each_record(const Walk& walk, std::uint64_t header, std::uint8_t type,
                     const std::function<void(View record)>& use);

}  // namespace annulus::io::hdf5
