#include "heaps_and_trees.hpp"

#include <algorithm>
#include <bit>

namespace annulus::io::hdf5 {

LocalHeap::LocalHeap(const Walk& walk, std::uint64_t address) {
  constexpr std::string_view what = "the local heap";
  Cursor fields = walk.structure(address, 32, what, "HEAP", 0, Walk::Checksum::none);
  fields.skip(3);
  const std::uint64_t size = fields.u64();
  fields.skip(8);  // free list
  data_ = walk.bytes(fields.u64(), size, what);
}

std::string LocalHeap::text(const Walk& walk, std::uint64_t offset) const {
  walk.require_intact(offset < data_.size(), "a name lies outside the local heap");
  const auto begin = data_.begin() + static_cast<std::ptrdiff_t>(offset);
  const auto end = std::find(begin, data_.end(), std::uint8_t{0});
  walk.require_intact(end != data_.end(), "a name in the local heap has no end");
  walk.spend(static_cast<std::uint64_t>(end - begin));
  return std::string(begin, end);
}

View GlobalHeap::object(const Walk& walk, std::uint64_t address, std::uint32_t index) {
  const auto& objects = collection(walk, address).objects;
  const auto found = objects.find(index);
  if (found == objects.end()) walk.damaged("a string of variable length is missing");
  return found->second;
}

const GlobalHeap::Collection& GlobalHeap::collection(const Walk& walk, std::uint64_t address) {
  constexpr std::string_view what = "the global heap";
  constexpr std::uint64_t header_bytes = 16;
  if (const auto known = collections_.find(address); known != collections_.end()) return known->second;
  Collection collection;
  Cursor header = walk.structure(address, header_bytes, what, "GCOL", 1, Walk::Checksum::none);
  header.skip(3);
  collection.bytes = walk.bytes(address, header.u64(), what);
  Cursor fields(walk, collection.bytes, what);
  fields.skip(header_bytes);
  while (fields.left() >= header_bytes) {
    const std::uint16_t index = fields.u16();
    fields.skip(6);  // links to the object, reserved
    const std::uint64_t size = fields.u64();
    if (index == 0) break;  // the rest is free
    const View object = fields.take(size);
    fields.skip(std::min<std::uint64_t>(fields.left(), (8 - size % 8) % 8));
    walk.require_intact(collection.objects.emplace(index, object).second,
                        "two strings of the global heap have one number");
  }
  return collections_.emplace(address, std::move(collection)).first->second;
}

namespace {

constexpr std::string_view heap_text = "the fractal heap", block_text = "a block of the fractal heap";

unsigned log2_of(std::uint64_t power) {
  return static_cast<unsigned>(std::countr_zero(power));
}

}  // namespace

FractalHeap::FractalHeap(const Walk& walk, std::uint64_t address) : address_(address) {
  constexpr std::uint64_t header_bytes = 146;  // without filters
  const Bytes header = walk.bytes(address, header_bytes, heap_text);
  Cursor fields(walk, header, heap_text);
  fields.signature("FRHP");
  fields.version(0);
  id_bytes_ = fields.u16();
  if (fields.u16() != 0) walk.refuse("has compressed links or attributes", "write it again with h5repack");
  require_checksum(walk, header, heap_text);
  has_checksums_ = (fields.u8() & 2) != 0;
  const std::uint32_t largest_object = fields.u32();
  fields.skip(12 * 8);  // objects too large or tiny for blocks, free space, numbers of objects
  width_ = fields.u16();
  starting_block_ = fields.u64();
  most_direct_ = fields.u64();
  const std::uint16_t heap_bits = fields.u16();
  fields.skip(2);
  root_ = fields.u64();
  root_rows_ = fields.u16();
  walk.require_intact(width_ > 0 && std::has_single_bit(width_) && std::has_single_bit(starting_block_) &&
                          std::has_single_bit(most_direct_) && most_direct_ >= starting_block_ &&
                          heap_bits > 0 && heap_bits <= 64 && largest_object > 0,
                      "the fractal heap's table is impossible");
  // Rows double: their offsets stay within 64 bits.
  walk.require_intact(log2_of(most_direct_) < 32 && width_ <= 1024 &&
                          root_rows_ + log2_of(starting_block_) + log2_of(width_) < 64,
                      "the fractal heap's table is impossible");
  offset_bytes_ = (heap_bits + 7u) / 8;
  length_bytes_ = std::min((log2_of(most_direct_) + 7) / 8, bytes_for(largest_object));
}

View FractalHeap::object(const Walk& walk, View id) {
  Cursor fields(walk, id.first(std::min<std::size_t>(id.size(), id_bytes_)), "a heap ID");
  const std::uint8_t first = fields.u8();
  walk.require_intact(first >> 6 == 0, "a heap ID has an unknown version");
  if ((first >> 4 & 3) != 0)
    walk.refuse("has an attribute or a link of more than 4 KiB among more than eight",
                "shorten it, or write text as a string of variable length");
  const std::uint64_t offset = fields.number(offset_bytes_), length = fields.number(length_bytes_);
  const HeapBlock& block = block_of(walk, offset);
  const std::uint64_t inside = offset - block.offset;
  walk.require_intact(inside <= block.bytes.size() && length <= block.bytes.size() - inside,
                      "an object of the fractal heap reaches beyond its block");
  return View(block.bytes).subspan(inside, length);
}

// Rows 0 and 1 have blocks of the starting size, every further row twice that of the one before.
std::uint64_t FractalHeap::row_block(unsigned row) const {
  return row < 2 ? starting_block_ : starting_block_ << (row - 1);
}

std::uint64_t FractalHeap::row_offset(unsigned row) const {
  return row == 0 ? 0 : width_ * (starting_block_ << (row - 1));
}

// Rows of an indirect block that stands for `size` bytes of the heap.
unsigned FractalHeap::rows_below(std::uint64_t size) const {
  return log2_of(size) - log2_of(starting_block_ * width_) + 1;
}

const FractalHeap::HeapBlock& FractalHeap::block_of(const Walk& walk, std::uint64_t offset) {
  std::uint64_t address = root_, begin = 0, size = starting_block_;
  unsigned rows = root_rows_;  // 0: the root is a direct block
  while (rows > 0) {
    const unsigned direct_rows = std::min(rows, log2_of(most_direct_) - log2_of(starting_block_) + 2);
    Cursor fields(walk, indirect_block(walk, address, begin, rows), block_text);
    unsigned row = rows - 1;
    while (row > 0 && offset - begin < row_offset(row)) --row;
    const std::uint64_t column = (offset - begin - row_offset(row)) / row_block(row);
    walk.require_intact(column < width_, "an object lies outside the fractal heap");
    fields.skip(8 * (row * width_ + column));
    address = fields.u64();
    begin += row_offset(row) + column * row_block(row);
    size = row_block(row);
    if (row < direct_rows) break;
    rows = rows_below(size);
    walk.require_intact(size >= starting_block_ * width_ && rows < 64,
                        "the fractal heap's table is impossible");
  }
  if (const auto known = blocks_.find(address); known != blocks_.end()) {
    walk.require_intact(known->second.offset == begin, "two blocks of the fractal heap are one");
    return known->second;
  }
  return blocks_.emplace(address, read_block(walk, address, begin, size)).first->second;
}

// The addresses that an indirect block holds.
View FractalHeap::indirect_block(const Walk& walk, std::uint64_t address, std::uint64_t offset,
                                 unsigned rows) {
  const std::uint64_t prefix = 13 + offset_bytes_, addresses = std::uint64_t{8} * width_ * rows;
  if (const auto known = indirect_.find(address); known == indirect_.end()) {
    const Bytes& bytes =
        indirect_.emplace(address, walk.bytes(address, prefix + addresses + 4, block_text)).first->second;
    require_checksum(walk, bytes, block_text);
    Cursor fields(walk, bytes, block_text);
    fields.signature("FHIB");
    fields.version(0);
    walk.require_intact(fields.u64() == address_ && fields.number(offset_bytes_) == offset,
                        "a block of the fractal heap is another one's");
  }
  const View known = indirect_[address];
  walk.require_intact(known.size() == prefix + addresses + 4, "two blocks of the fractal heap are one");
  return known.subspan(prefix, addresses);
}

FractalHeap::HeapBlock FractalHeap::read_block(const Walk& walk, std::uint64_t address, std::uint64_t offset,
                                               std::uint64_t size) const {
  HeapBlock block{walk.bytes(address, size, block_text), offset};
  Cursor fields(walk, block.bytes, block_text);
  fields.signature("FHDB");
  fields.version(0);
  walk.require_intact(fields.u64() == address_ && fields.number(offset_bytes_) == offset,
                      "a block of the fractal heap is another one's");
  if (has_checksums_) {
    // The checksum stands in the prefix and is that of the block with zeros in its place.
    const std::size_t at = size - fields.left();
    Bytes whole = block.bytes;
    const std::uint64_t stored = fields.u32();
    std::fill_n(whole.begin() + static_cast<std::ptrdiff_t>(at), 4, std::uint8_t{0});
    require_equal_checksum(walk, stored, whole, block_text);
  }
  return block;
}

}  // namespace annulus::io::hdf5
