#include "heaps.hpp"

#include <algorithm>

namespace annulus::io::hdf5 {

LocalHeap::LocalHeap(const Walk& walk, std::uint64_t address) {
  constexpr std::string_view what = "the local heap";
  const Bytes header = walk.bytes(address, 32, what);
  Cursor fields(walk, header, what);
  fields.signature("HEAP");
  fields.version(0);
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
  {
    const Bytes header = walk.bytes(address, header_bytes, what);
    Cursor fields(walk, header, what);
    fields.signature("GCOL");
    fields.version(1);
    fields.skip(3);
    collection.bytes = walk.bytes(address, fields.u64(), what);
  }
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

}  // namespace annulus::io::hdf5
