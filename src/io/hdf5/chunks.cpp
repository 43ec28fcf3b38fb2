#include <algorithm>

#include "btrees.hpp"
#include "layout.hpp"

namespace annulus::io::hdf5 {

namespace {

// The chunk of these grid coordinates.
Chunk& chunk_at(const Walk& walk, Layout& layout, const Extents& at) {
  std::uint64_t index = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    walk.require_intact(at[i] < layout.grid[i], "a chunk lies outside its dataset");
    index = index * layout.grid[i] + at[i];
  }
  Chunk& chunk = layout.chunks[index];
  walk.require_intact(chunk.address == no_address, "two chunks have one place");
  return chunk;
}

void read_tree(const Walk& walk, const ChunkIndex& index, Layout& layout) {
  constexpr std::uint8_t chunk_tree = 1;
  const std::size_t rank = layout.chunk.size();
  Extents at(rank);
  for_each_child(walk, index.address, chunk_tree, 8 + 8 * std::uint64_t{index.old_key_width},
                 [&](View key, std::uint64_t address) {
                   Cursor fields(walk, key, "the key of a chunk");
                   Chunk chunk{address, fields.u32(), 0};
                   chunk.skipped_filters = fields.u32();
                   for (std::size_t i = 0; i < rank; ++i) {
                     const std::uint64_t first = fields.u64();
                     walk.require_intact(first % layout.chunk[i] == 0, "a chunk is out of place");
                     at[i] = first / layout.chunk[i];
                   }
                   chunk_at(walk, layout, at) = chunk;
                 });
}

void read_new_tree(const Walk& walk, const ChunkIndex& index, Layout& layout) {
  constexpr std::uint8_t plain_chunks = 10, filtered_chunks = 11;
  const std::size_t rank = layout.chunk.size();
  const bool filtered = !layout.filters.empty();
  Extents at(rank);
  for_each_record(walk, index.address, filtered ? filtered_chunks : plain_chunks, [&](View record) {
    Cursor fields(walk, record, "the record of a chunk");
    Chunk chunk{fields.u64(), layout.chunk_bytes, 0};
    if (filtered) {
      const std::uint64_t rest = 4 + 8 * std::uint64_t{rank};
      walk.require_intact(fields.left() > rest && fields.left() - rest <= 8,
                          "the record of a chunk has a wrong size");
      chunk.size = fields.number(static_cast<unsigned>(fields.left() - rest));
      chunk.skipped_filters = fields.u32();
    }
    for (std::uint64_t& coordinate : at) coordinate = fields.u64();
    chunk_at(walk, layout, at) = chunk;
  });
}

}  // namespace

void ChunkEntries::set_entry_bytes(std::uint8_t bytes) {
  const bool fits = layout_.filters.empty() ? bytes == 8 : bytes > 12 && bytes <= 20;
  walk_.require_intact(fits, "the entries of the chunk index have a wrong size");
  entry_bytes_ = bytes;
}

void ChunkEntries::take(Cursor& fields, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t end = first < this->count() ? std::min(this->count(), first + count) : first;
  for (std::uint64_t i = first; i < end; ++i) {
    Chunk& chunk = layout_.chunks[i];
    chunk.address = fields.u64();
    chunk.size = layout_.chunk_bytes;
    if (!layout_.filters.empty()) {
      chunk.size = fields.number(static_cast<unsigned>(entry_bytes_ - 12));
      chunk.skipped_filters = fields.u32();
    }
  }
  fields.skip((count - (end - first)) * entry_bytes_);
}

void read_chunks(const Walk& walk, const ChunkIndex& index, Layout& layout) {
  if (index.address == no_address) return;  // nothing was written, which is looked at later
  ChunkEntries entries(walk, layout);
  switch (index.kind) {
    case ChunkIndex::Kind::tree:
      return read_tree(walk, index, layout);
    case ChunkIndex::Kind::single:
      walk.require_intact(layout.chunks.size() == 1, "there are several chunks without an index");
      layout.chunks.front() = index.only;
      layout.chunks.front().address = index.address;
      return;
    case ChunkIndex::Kind::implicit:
      walk.require_intact(layout.filters.empty(), "packed chunks have no index");
      for (std::uint64_t i = 0; i < layout.chunks.size(); ++i) {
        const std::uint64_t begin = i * layout.chunk_bytes;
        walk.require_intact(walk.source().holds(index.address, begin),
                            "chunks reach beyond the end of the file");
        layout.chunks[i] = {index.address + begin, layout.chunk_bytes, 0};
      }
      return;
    case ChunkIndex::Kind::fixed_array:
      return read_fixed_array(walk, index.address, entries);
    case ChunkIndex::Kind::extensible_array:
      return read_extensible_array(walk, index.address, entries);
    case ChunkIndex::Kind::new_tree:
      return read_new_tree(walk, index, layout);
  }
}

}  // namespace annulus::io::hdf5
