#pragma once

#include <functional>
#include <map>

#include "source.hpp"

namespace annulus::io::hdf5 {

/// Calls `use(key, child)` for every child of the leaves of a B-tree of version 1: the nodes of symbols of a
/// group (`type` 0) or the chunks of a dataset (1), whose keys have `key_bytes`.
void for_each_child(const Walk& walk, std::uint64_t root, std::uint8_t type, std::uint64_t key_bytes,
                    const std::function<void(View key, std::uint64_t child)>& use);

/// Calls `use` for every record of a B-tree of version 2, whose type is `type`.
void for_each_record(const Walk& walk, std::uint64_t header, std::uint8_t type,
                     const std::function<void(View record)>& use);

/// The names of a group of the old kind: text at offsets.
class LocalHeap {
 public:
  LocalHeap(const Walk& walk, std::uint64_t address);
  std::string text(const Walk& walk, std::uint64_t offset) const;

 private:
  Bytes data_;
};

/// Strings of variable length. Collections are read once each. They have no checksum.
class GlobalHeap {
 public:
  /// The object `index` of the collection at `address`.
  View object(const Walk& walk, std::uint64_t address, std::uint32_t index);

 private:
  struct Collection {
    Bytes bytes;
    std::map<std::uint32_t, View> objects;
  };
  const Collection& collection(const Walk& walk, std::uint64_t address);
  std::map<std::uint64_t, Collection> collections_;
};

/// Links or attributes of an object that has many: messages in blocks that a table of doubling sizes
/// orders.
class FractalHeap {
 public:
  FractalHeap(const Walk& walk, std::uint64_t address);

  /// The message that a heap ID of a B-tree's record names.
  View object(const Walk& walk, View id);

 private:
  struct HeapBlock {
    Bytes bytes;
    std::uint64_t offset;  // of its first byte in the heap
  };
  const HeapBlock& block_of(const Walk& walk, std::uint64_t offset);
  HeapBlock read_block(const Walk& walk, std::uint64_t address, std::uint64_t offset,
                       std::uint64_t size) const;
  View indirect_block(const Walk& walk, std::uint64_t address, std::uint64_t offset, unsigned rows);
  std::uint64_t row_offset(unsigned row) const;
  std::uint64_t row_block(unsigned row) const;
  unsigned rows_below(std::uint64_t size) const;

  std::uint64_t address_;
  std::uint64_t starting_block_ = 0, most_direct_ = 0, root_ = 0;
  unsigned width_ = 0, root_rows_ = 0, offset_bytes_ = 0, length_bytes_ = 0, id_bytes_ = 0;
  bool has_checksums_ = false;
  std::map<std::uint64_t, HeapBlock> blocks_;  // by address
  std::map<std::uint64_t, Bytes> indirect_;
};

}  // namespace annulus::io::hdf5
