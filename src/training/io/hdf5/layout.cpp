#include "layout.hpp"

#include <algorithm>

#include <annulus/base/division.hpp>

namespace annulus::io::hdf5 {

namespace {

constexpr std::string_view layout_text = "the layout", filters_text = "the filter pipeline";
constexpr const char* repack_advice =
    "write it in one piece or with the filters gzip, shuffle and fletcher32";

/// Bytes of a chunk that one reader decodes at a time. h5py's own chunks have up to 1 MiB.
constexpr std::uint64_t largest_chunk = std::uint64_t{128} << 20;

/// Deflate's best ratio is 1032.
constexpr std::uint64_t best_ratio = 1032, deflate_overhead = 16;

std::vector<Filter> decode_filters(const Walk& walk, View message) {
  Cursor fields(walk, message, filters_text);
  const std::uint8_t version = fields.u8(), count = fields.u8();
  walk.require_intact(version == 1 || version == 2, "the filter pipeline has an unknown version");
  walk.require_intact(count <= 32, "the filter pipeline has more than 32 filters");
  if (version == 1) fields.skip(6);
  std::vector<Filter> filters;
  for (unsigned i = 0; i < count; ++i) {
    const std::uint16_t id = fields.u16();
    const std::uint16_t name_bytes = version == 1 || id >= 256 ? fields.u16() : std::uint16_t{0};
    fields.skip(2);  // flags
    const std::uint16_t values = fields.u16();
    fields.skip(name_bytes + 4u * values + (version == 1 && values % 2 != 0 ? 4u : 0u));
    if (id < 1 || id > 3)
      walk.refuse(fmt::format("is packed with the filter {}, which Annulus does not read", id),
                  repack_advice);
    filters.push_back(static_cast<Filter>(id));
  }
  return filters;
}

void set_chunk_extents(const Walk& walk, Extents extents, const StoredDataset& dataset,
                       StoredLayout& layout) {
  walk.require_intact(extents.size() >= 2 && extents.size() == dataset.extents.size() + 1 &&
                          extents.back() == dataset.type.size,
                      "chunks and dataset differ in their dimensions");
  extents.pop_back();
  walk.require_intact(std::ranges::find(extents, 0u) == extents.end(), "chunks have an extent of 0");
  const auto elements = elements_of(extents);
  if (!elements.has_value() || *elements > largest_chunk / dataset.type.size)
    walk.refuse(fmt::format("has chunks of more than {} MiB", largest_chunk >> 20), "write smaller chunks");
  layout.chunk_bytes = *elements * dataset.type.size;
  for (std::size_t i = 0; i < extents.size(); ++i)
    layout.grid.push_back(ceil_divide(dataset.extents[i], extents[i]));
  layout.chunk = std::move(extents);
}

/// Indices without coordinates count chunks in the order of what the extents may grow to. True when that is
/// the order of the extents: only the first dimension may grow.
bool ordered_by_extents(const StoredDataset& dataset) {
  return dataset.extents.size() < 2 ||
         std::equal(dataset.extents.begin() + 1, dataset.extents.end(), dataset.limits.begin() + 1);
}

/// Decodes the layout of a chunked dataset from behind its class.
ChunkIndex decode_chunked(const Walk& walk, Cursor& fields, std::uint8_t version,
                          const StoredDataset& dataset, StoredLayout& layout) {
  constexpr std::uint8_t plain_edges = 1, filtered_single = 2;
  ChunkIndex index;
  Extents extents;
  if (version == 3) {
    index.old_key_width = fields.u8();
    index.address = fields.u64();
    for (unsigned i = 0; i < index.old_key_width; ++i) extents.push_back(fields.u32());
    set_chunk_extents(walk, std::move(extents), dataset, layout);
    return index;
  }
  const std::uint8_t flags = fields.u8(), rank = fields.u8(), width = fields.u8();
  walk.require_intact(width >= 1 && width <= 8, "the extents of chunks have an unknown width");
  if ((flags & plain_edges) != 0 && !layout.filters.empty())
    walk.refuse("has chunks at its edges that are not packed", "write it again without that option");
  for (unsigned i = 0; i < rank; ++i) extents.push_back(fields.number(width));
  set_chunk_extents(walk, std::move(extents), dataset, layout);
  const std::uint8_t kind = fields.u8();
  index.kind = static_cast<ChunkIndex::Kind>(kind);
  index.only.size = layout.chunk_bytes;
  switch (index.kind) {
    case ChunkIndex::Kind::single:
      if ((flags & filtered_single) != 0) {
        index.only.size = fields.u64();
        index.only.skipped_filters = fields.u32();
      }
      break;
    case ChunkIndex::Kind::implicit:
      break;
    case ChunkIndex::Kind::fixed_array:
      fields.skip(1);
      break;
    case ChunkIndex::Kind::extensible_array:
      fields.skip(5);
      break;
    case ChunkIndex::Kind::new_tree:
      fields.skip(6);
      break;
    default:
      walk.refuse(fmt::format("has chunks with an index of the kind {}", kind), repack_advice);
  }
  const bool in_order = index.kind == ChunkIndex::Kind::implicit ||
                        index.kind == ChunkIndex::Kind::fixed_array ||
                        index.kind == ChunkIndex::Kind::extensible_array;
  if (in_order && !ordered_by_extents(dataset))
    walk.refuse("has chunks in the order of other extents than its own", repack_advice);
  index.address = fields.u64();
  return index;
}

/// Throws Error unless the chunks can hold what they claim, each its own bytes of the file.
void require_chunks(const Walk& walk, const StoredLayout& layout) {
  const bool deflated = std::ranges::find(layout.filters, Filter::deflate) != layout.filters.end();
  std::uint64_t stored = 0;
  for (const StoredChunk& chunk : layout.chunks) {
    if (chunk.address == no_address)
      walk.refuse("has elements that were never written", "the file is incomplete; write it again");
    walk.require_intact(walk.source().holds(chunk.address, chunk.size),
                        "a chunk reaches beyond the end of the file");
    // Checksums and data that does not shrink make a chunk a little larger than what it unpacks to.
    walk.require_intact(chunk.size <= layout.chunk_bytes + layout.chunk_bytes / 8 + 1024,
                        "a chunk is larger than what it unpacks to");
    const std::uint64_t most = deflated ? (chunk.size + deflate_overhead) * best_ratio : chunk.size;
    walk.require_intact(layout.chunk_bytes <= most, "a chunk is too small for what it unpacks to");
    stored += chunk.size;
    walk.require_intact(stored <= walk.source().size(), "chunks overlap");
  }
}

StoredLayout read_layout(const Walk& walk, const ObjectHeader& header, const StoredDataset& dataset,
                         std::uint64_t bytes) {
  enum : std::uint8_t { compact_class = 0, contiguous_class = 1, chunked_class = 2, virtual_class = 3 };
  const auto message = header.find(walk, MessageType::layout);
  if (!message.has_value()) walk.damaged("the dataset has no layout");
  StoredLayout layout;
  if (const auto filters = header.find(walk, MessageType::filters))
    layout.filters = decode_filters(walk, *filters);
  Cursor fields(walk, *message, layout_text);
  const std::uint8_t version = fields.u8();
  if (version != 3 && version != 4)
    walk.refuse(fmt::format("has a layout of version {}, Annulus reads 3 and 4", version),
                "write it again with h5repack, or with HDF5 1.8 to 1.14");
  const std::uint8_t kind = fields.u8();
  if (kind == virtual_class)
    walk.refuse("is a virtual dataset, whose elements are in other files",
                "write the elements into this file (h5py: file['x'] = source['x'][...])");
  constexpr const char* too_large = "its extents are larger than what the file holds";
  if (kind == compact_class) {
    layout.compact = fields.take(fields.u16());
    walk.require_intact(bytes <= layout.compact.size(), too_large);
  } else if (kind == contiguous_class) {
    layout.kind = StoredLayout::Kind::contiguous;
    layout.address = fields.u64();
    const std::uint64_t size = fields.u64();
    if (bytes > 0 && layout.address == no_address)
      walk.refuse("has elements that were never written", "the file is incomplete; write it again");
    walk.require_intact(bytes == 0 || (bytes <= size && walk.source().holds(layout.address, bytes)),
                        too_large);
  } else if (kind == chunked_class) {
    layout.kind = StoredLayout::Kind::chunked;
    const ChunkIndex index = decode_chunked(walk, fields, version, dataset, layout);
    const auto chunks = elements_of(layout.grid);
    // Unpacked or not, and whatever the index, a chunk has a byte at least, and an entry.
    walk.require_intact(chunks.has_value() && *chunks <= walk.source().size(), too_large);
    walk.spend(*chunks * sizeof(StoredChunk));
    layout.chunks.resize(*chunks);
    if (*chunks > 0) read_chunks(walk, index, layout);
    require_chunks(walk, layout);
  } else {
    walk.damaged("the layout is of an unknown kind");
  }
  return layout;
}

}  // namespace

StoredDataset read_dataset(const Walk& walk, const ObjectHeader& header) {
  const auto type = header.find(walk, MessageType::datatype),
             space = header.find(walk, MessageType::dataspace);
  if (!type.has_value() || !space.has_value()) walk.damaged("the dataset has no type or no extents");
  StoredDataset dataset;
  dataset.type = decode_type(walk, *type);
  if (!dataset.type.dtype().has_value())
    walk.refuse("has elements of a type that Annulus does not use",
                "write it as u8, u16, u32, u64, i32, i64, f32 or f64");
  auto shape = decode_space(walk, *space);
  if (!shape.has_value()) walk.refuse("has no extents", "write it with elements");
  dataset.extents = std::move(shape->extents);
  dataset.limits = std::move(shape->limits);
  if (std::ranges::any_of(header.messages(),
                          [](const HeaderMessage& m) { return m.type == MessageType::external_files; }))
    walk.refuse("has its elements in another file (external storage), which Annulus does not read",
                "write them into this file (h5repack does)");
  const auto elements = elements_of(dataset.extents);
  walk.require_intact(elements.has_value() && *elements <= ~std::uint64_t{0} / dataset.type.size,
                      "its extents are impossible");
  dataset.layout = read_layout(walk, header, dataset, *elements * dataset.type.size);
  return dataset;
}

}  // namespace annulus::io::hdf5
