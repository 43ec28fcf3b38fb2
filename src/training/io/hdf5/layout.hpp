#pragma once

#include <list>
#include <unordered_map>
#include <vector>

#include "object_header.hpp"
#include "types.hpp"

namespace annulus::io::hdf5 {

/// One step of a chunk's way to the file. Annulus reads what HDF5 has built in and h5py offers by name.
enum class Filter : std::uint16_t { deflate = 1, shuffle = 2, fletcher32 = 3 };

/// Where a chunk lies.
struct StoredChunk {
  std::uint64_t address = no_address;
  std::uint64_t size = 0;             ///< stored bytes
  std::uint32_t skipped_filters = 0;  ///< bit i: filter i was not applied
};

/// How a dataset's elements lie in the file. One of: bytes in the header, one piece, chunks.
struct StoredLayout {
  enum class Kind { compact, contiguous, chunked };
  Kind kind = Kind::compact;
  View compact;                        ///< the elements themselves
  std::uint64_t address = no_address;  ///< of the one piece
  Extents chunk;                       ///< elements of a chunk along each dimension
  Extents grid;                        ///< chunks along each dimension
  std::uint64_t chunk_bytes = 0;       ///< of a whole chunk, unpacked
  std::vector<Filter> filters;         ///< in the order of writing
  std::vector<StoredChunk> chunks;     ///< row-major in the grid
};

/// A dataset's description, checked: the file holds all of its elements.
struct StoredDataset {
  StoredType type;
  Extents extents, limits;  ///< limits: what the extents may grow to
  StoredLayout layout;
};

/// Reads and checks what the header of a dataset says, and the index of its chunks. Throws Error for what
/// Annulus does not read (external storage, virtual datasets, foreign filters, elements never written) and
/// for what the file cannot hold, before anything of the dataset's size is allocated.
StoredDataset read_dataset(const Walk& walk, const ObjectHeader& header);

/// How the index of the chunks is stored, and what it needs to be read.
struct ChunkIndex {
  enum class Kind : std::uint8_t {
    tree = 0,
    single = 1,
    implicit = 2,
    fixed_array = 3,
    extensible_array = 4,
    new_tree = 5
  };
  Kind kind = Kind::tree;
  std::uint64_t address = no_address;
  StoredChunk only;  ///< for single: its size and filters when it is filtered
  std::uint8_t old_key_width =
      0;  ///< dimensions of a key of `tree`, that of the bytes of an element included
};

/// Fills layout.chunks; chunk extents, grid, chunk_bytes and filters are known.
void read_chunks(const Walk& walk, const ChunkIndex& index, StoredLayout& layout);

/// Chunks unpacked lately, the last one first.
class ChunkCache {
 public:
  /// The elements of a chunk of this index in the grid.
  View chunk(const Walk& walk, const StoredLayout& layout, std::uint32_t element_bytes, std::uint64_t index);

 private:
  struct UnpackedChunk {
    std::uint64_t index;
    Bytes bytes;
  };
  std::list<UnpackedChunk> entries_;
  std::unordered_map<std::uint64_t, std::list<UnpackedChunk>::iterator> places_;
};

/// Reads the elements of `part` (all of them when it is null), which lies inside the dataset, in row-major
/// order and this machine's byte order.
void read_elements(const Walk& walk, const StoredDataset& dataset, const Hyperslab* part,
                   std::span<std::uint8_t> out, ChunkCache& cache);

/// Undoes the filters of a chunk. Never makes more than the chunk's size and the checksums of its filters.
Bytes unpack(const Walk& walk, const StoredLayout& layout, std::uint32_t element_bytes,
             const StoredChunk& chunk);

}  // namespace annulus::io::hdf5
