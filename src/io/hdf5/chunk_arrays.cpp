#include <algorithm>
#include <bit>

#include <annulus/base/division.hpp>

#include "layout.hpp"

namespace annulus::io::hdf5 {

namespace {

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
        const Bytes content = walk.bytes(address, bytes, what);
        require_checksum(walk, content, what);
        Cursor fields(walk, content, what);
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

  Cursor start(const Bytes& block, std::string_view signature, bool has_offset) const {
    Cursor fields(walk, block, extensible_text);
    fields.signature(signature);
    fields.version(0);
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
    const Bytes block = walk.bytes(address, size, extensible_text);
    require_checksum(walk, block, extensible_text);
    Cursor fields = start(block, "EADB", true);
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
    const Bytes block = walk.bytes(address, size, extensible_text);
    require_checksum(walk, block, extensible_text);
    Cursor fields = start(block, "EASB", true);
    const View bitmaps = fields.take(blocks * bitmap);
    for (std::uint64_t i = 0; i < blocks; ++i)
      data_block(fields.u64(), first + i * count, count, bitmaps.subspan(i * bitmap, bitmap));
  }
};

}  // namespace

void read_fixed_array(const Walk& walk, std::uint64_t address, ChunkEntries& entries) {
  constexpr std::uint64_t header_bytes = 28, prefix_bytes = 14;
  const Bytes header = walk.bytes(address, header_bytes, fixed_text);
  require_checksum(walk, header, fixed_text);
  Cursor fields(walk, header, fixed_text);
  fields.signature("FAHD");
  fields.version(0);
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
  const Bytes content = walk.bytes(block, size, fixed_text);
  require_checksum(walk, content, fixed_text);
  Cursor data(walk, content, fixed_text);
  data.signature("FADB");
  data.version(0);
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
  const Bytes header = walk.bytes(address, header_bytes, extensible_text);
  require_checksum(walk, header, extensible_text);
  Cursor fields(walk, header, extensible_text);
  fields.signature("EAHD");
  fields.version(0);
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
  const Bytes content =
      walk.bytes(index, 14 + in_index * entries.entry_bytes() + 8 * (blocks + others) + 4, extensible_text);
  require_checksum(walk, content, extensible_text);
  Cursor data = array.start(content, "EAIB", false);
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

}  // namespace annulus::io::hdf5
