#include <algorithm>
#include <bit>

#include <annulus/base/division.hpp>

#include "heaps_and_trees.hpp"
#include "layout.hpp"

namespace annulus::io::hdf5 {

namespace {

// The chunk of these grid coordinates.
StoredChunk& chunk_at(const Walk& walk, StoredLayout& layout, const Extents& at) {
  std::uint64_t index = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    walk.require_intact(at[i] < layout.grid[i], "a chunk lies outside its dataset");
    index = index * layout.grid[i] + at[i];
  }
  StoredChunk& chunk = layout.chunks[index];
  walk.require_intact(chunk.address == no_address, "two chunks have one place");
  return chunk;
}

void read_tree(const Walk& walk, const ChunkIndex& index, StoredLayout& layout) {
  constexpr std::uint8_t chunk_tree = 1;
  const std::size_t rank = layout.chunk.size();
  Extents at(rank);
  for_each_child(walk, index.address, chunk_tree, 8 + 8 * std::uint64_t{index.old_key_width},
                 [&](View key, std::uint64_t address) {
                   Cursor fields(walk, key, "the key of a chunk");
                   StoredChunk chunk{address, fields.u32(), 0};
                   chunk.skipped_filters = fields.u32();
                   for (std::size_t i = 0; i < rank; ++i) {
                     const std::uint64_t first = fields.u64();
                     walk.require_intact(first % layout.chunk[i] == 0, "a chunk is out of place");
                     at[i] = first / layout.chunk[i];
                   }
                   chunk_at(walk, layout, at) = chunk;
                 });
}

/// An entry of an index: an address and, where there are filters, a size of so many bytes and which were not
/// applied.
StoredChunk take_chunk(Cursor& fields, const StoredLayout& layout, std::uint64_t size_bytes) {
  StoredChunk chunk{fields.u64(), layout.chunk_bytes, 0};
  if (layout.filters.empty()) return chunk;
  chunk.size = fields.number(static_cast<unsigned>(size_bytes));
  chunk.skipped_filters = fields.u32();
  return chunk;
}

void read_new_tree(const Walk& walk, const ChunkIndex& index, StoredLayout& layout) {
  constexpr std::uint8_t plain_chunks = 10, filtered_chunks = 11;
  const std::size_t rank = layout.chunk.size();
  const bool filtered = !layout.filters.empty();
  Extents at(rank);
  for_each_record(walk, index.address, filtered ? filtered_chunks : plain_chunks, [&](View record) {
    Cursor fields(walk, record, "the record of a chunk");
    const std::uint64_t others = 8 + 4 + 8 * std::uint64_t{rank}, size_bytes = fields.left() - others;
    walk.require_intact(!filtered || (fields.left() > others && size_bytes <= 8),
                        "the record of a chunk has a wrong size");
    const StoredChunk chunk = take_chunk(fields, layout, size_bytes);
    for (std::uint64_t& coordinate : at) coordinate = fields.u64();
    chunk_at(walk, layout, at) = chunk;
  });
}

/// What the index structures of HDF5 1.10 share: entries in the order of the grid.
class ChunkEntries {
 public:
  ChunkEntries(const Walk& walk, StoredLayout& layout) : walk_(walk), layout_(layout) {}

  /// Bytes of an entry in the file must leave room for an address.
  void set_entry_bytes(std::uint8_t bytes) {
    const bool fits = layout_.filters.empty() ? bytes == 8 : bytes > 12 && bytes <= 20;
    walk_.require_intact(fits, "the entries of the chunk index have a wrong size");
    entry_bytes_ = bytes;
  }
  std::uint64_t entry_bytes() const { return entry_bytes_; }
  std::uint64_t count() const { return layout_.chunks.size(); }

  /// Takes entries for the chunks from `first` on.
  void take(Cursor& fields, std::uint64_t first, std::uint64_t count) {
    const std::uint64_t end = first < this->count() ? std::min(this->count(), first + count) : first;
    for (std::uint64_t i = first; i < end; ++i)
      layout_.chunks[i] = take_chunk(fields, layout_, entry_bytes_ - 12);
    fields.skip((count - (end - first)) * entry_bytes_);
  }

 private:
  const Walk& walk_;
  StoredLayout& layout_;
  std::uint64_t entry_bytes_ = 0;
};

constexpr std::string_view fixed_text = "the fixed array of chunks",
                           extensible_text = "the extensible array of chunks";
constexpr const char* impossible_array = "the array of chunks is impossible";

/// Takes entries that lie in one stretch behind `fields`, or in pages of `page` entries from `pages` on, each
/// with a checksum of its own.
struct Pages {
  const Walk& walk;
  ChunkEntries& entries;
  std::string_view what;

  void take(std::uint64_t address, std::uint64_t first, std::uint64_t count, std::uint64_t page,
            View initialized) const {
    for (std::uint64_t begin = 0; begin < count && first + begin < entries.count(); begin += page) {
      const std::uint64_t size = std::min(page, count - begin), number = begin / page;
      const std::uint64_t bytes = size * entries.entry_bytes() + 4;
      walk.require_intact(number / 8 < initialized.size(), impossible_array);
      // Pages that were never written are not there; their chunks are not either.
      if ((initialized[number / 8] & 0x80 >> number % 8) != 0) {
        Bytes content = walk.bytes(address, bytes, what);
        require_checksum(walk, content, what);
        Cursor fields(walk, std::move(content), what);
        entries.take(fields, first + begin, size);
      }
      address += page * entries.entry_bytes() + 4;
    }
  }
};

/// What the blocks of an extensible array have in common.
struct ExtensibleArray {
  const Walk& walk;
  ChunkEntries& entries;
  std::uint64_t header;
  std::uint8_t client, offset_bytes, page_bits;

  Cursor start(std::uint64_t address, std::uint64_t size, std::string_view signature, bool has_offset) const {
    Cursor fields = walk.structure(address, size, extensible_text, signature);
    fields.version(client);
    walk.require_intact(fields.u64() == header, "a block of the array of chunks is another one's");
    if (has_offset) fields.skip(offset_bytes);
    return fields;
  }

  /// A data block of `count` entries; `initialized` tells which of its pages are there.
  void data_block(std::uint64_t address, std::uint64_t first, std::uint64_t count, View initialized) const {
    if (address == no_address || first >= entries.count()) return;
    const std::uint64_t prefix = 14u + offset_bytes, page = std::uint64_t{1} << page_bits;
    const bool paged = count > page;
    walk.require_intact(count <= walk.source().size(), impossible_array);
    const std::uint64_t size = prefix + (paged ? 0 : count * entries.entry_bytes()) + 4;
    Cursor fields = start(address, size, "EADB", true);
    if (paged) {
      Pages{walk, entries, extensible_text}.take(address + size, first, count, page, initialized);
    } else {
      entries.take(fields, first, count);
    }
  }

  /// A block of `blocks` addresses of data blocks.
  void super_block(std::uint64_t address, std::uint64_t first, std::uint64_t blocks,
                   std::uint64_t count) const {
    if (address == no_address || first >= entries.count()) return;
    const std::uint64_t page = std::uint64_t{1} << page_bits;
    const std::uint64_t pages = count > page ? count / page : 0;
    const std::uint64_t bitmap = ceil_divide(pages, std::uint64_t{8});
    walk.require_intact(blocks <= walk.source().size() && bitmap <= walk.source().size(), impossible_array);
    const std::uint64_t size = 14u + offset_bytes + blocks * (bitmap + 8) + 4;
    Cursor fields = start(address, size, "EASB", true);
    const View bitmaps = fields.take(blocks * bitmap);
    for (std::uint64_t i = 0; i < blocks; ++i)
      data_block(fields.u64(), first + i * count, count, bitmaps.subspan(i * bitmap, bitmap));
  }
};

void read_fixed_array(const Walk& walk, std::uint64_t address, ChunkEntries& entries) {
  constexpr std::uint64_t header_bytes = 28, prefix_bytes = 14;
  Cursor fields = walk.structure(address, header_bytes, fixed_text, "FAHD");
  const std::uint8_t client = fields.u8();
  entries.set_entry_bytes(fields.u8());
  const std::uint8_t page_bits = fields.u8();
  const std::uint64_t count = fields.u64(), block = fields.u64();
  walk.require_intact(page_bits < 32 && count >= entries.count() && count <= walk.source().size(),
                      impossible_array);
  if (block == no_address) return;
  const std::uint64_t page = std::uint64_t{1} << page_bits;
  const bool paged = count > page;
  const std::uint64_t bitmap = paged ? ceil_divide(ceil_divide(count, page), std::uint64_t{8}) : 0;
  const std::uint64_t size = prefix_bytes + bitmap + (paged ? 0 : count * entries.entry_bytes()) + 4;
  Cursor data = walk.structure(block, size, fixed_text, "FADB");
  data.version(client);
  walk.require_intact(data.u64() == address, "a block of the array of chunks is another one's");
  if (paged) {
    Pages{walk, entries, fixed_text}.take(block + size, 0, count, page, data.take(bitmap));
  } else {
    entries.take(data, 0, count);
  }
}

void read_extensible_array(const Walk& walk, std::uint64_t address, ChunkEntries& entries) {
  constexpr std::uint64_t header_bytes = 72;
  Cursor fields = walk.structure(address, header_bytes, extensible_text, "EAHD");
  const std::uint8_t client = fields.u8();
  entries.set_entry_bytes(fields.u8());
  const std::uint8_t most_bits = fields.u8(), in_index = fields.u8(), least_entries = fields.u8(),
                     least_pointers = fields.u8(), page_bits = fields.u8();
  fields.skip(6 * 8);  // statistics
  const std::uint64_t index = fields.u64();
  walk.require_intact(std::has_single_bit(least_entries) && std::has_single_bit(least_pointers) &&
                          least_pointers >= 2 && most_bits <= 32 + 8 && page_bits < 32 &&
                          most_bits > std::bit_width(least_entries),
                      impossible_array);
  if (index == no_address) return;
  const ExtensibleArray array{
      walk, entries, address, client, static_cast<std::uint8_t>((most_bits + 7) / 8), page_bits};
  // Super block u has 2^(u/2) data blocks of least_entries · 2^((u+1)/2) entries; the index block holds the
  // addresses of the data blocks of the first super blocks itself.
  const unsigned super_blocks = 1u + most_bits - static_cast<unsigned>(std::bit_width(least_entries) - 1);
  const unsigned own = 2 * static_cast<unsigned>(std::bit_width(least_pointers) - 1);
  const std::uint64_t blocks = 2 * (std::uint64_t{least_pointers} - 1);
  const std::uint64_t others = super_blocks > own ? super_blocks - own : 0;
  Cursor data =
      array.start(index, 14 + in_index * entries.entry_bytes() + 8 * (blocks + others) + 4, "EAIB", false);
  entries.take(data, 0, in_index);
  std::uint64_t first = in_index;
  const auto entries_of = [&](unsigned u) { return std::uint64_t{least_entries} << (u + 1) / 2; };
  for (unsigned u = 0; u < super_blocks; ++u) {
    const std::uint64_t count = std::uint64_t{1} << u / 2;
    if (u >= own) {
      array.super_block(data.u64(), first, count, entries_of(u));
    } else {
      for (std::uint64_t i = 0; i < count; ++i)
        array.data_block(data.u64(), first + i * entries_of(u), entries_of(u), {});
    }
    first += count * entries_of(u);
  }
}

}  // namespace

void read_chunks(const Walk& walk, const ChunkIndex& index, StoredLayout& layout) {
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
