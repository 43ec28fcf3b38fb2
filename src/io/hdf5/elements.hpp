#pragma once

#include <list>
#include <unordered_map>

#include "layout.hpp"

namespace annulus::io::hdf5 {

/// Chunks unpacked lately, the last one first.
class ChunkCache {
 public:
  /// The elements of a chunk of this index in the grid.
  View chunk(const Walk& walk, const Layout& layout, std::uint32_t element_bytes, std::uint64_t index);

 private:
  struct Entry {
    std::uint64_t index;
    Bytes bytes;
  };
  std::list<Entry> entries_;
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> places_;
};

/// Reads the elements of `part` (all of them when it is null), which lies inside the dataset, in row-major
/// order and this machine's byte order.
void read_elements(const Walk& walk, const StoredDataset& dataset, const Hyperslab* part,
                   std::span<std::uint8_t> out, ChunkCache& cache);

/// Undoes the filters of a chunk. Never makes more than the chunk's size and the checksums of its filters.
Bytes unpack(const Walk& walk, const Layout& layout, std::uint32_t element_bytes, const Chunk& chunk);

}  // namespace annulus::io::hdf5
