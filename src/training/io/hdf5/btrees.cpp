#include "heaps_and_trees.hpp"

#include <array>

namespace annulus::io::hdf5 {

namespace {

constexpr std::string_view tree_text = "the B-tree", node_text = "a node of the B-tree";

// Trees of files below 2^64 bytes are lower by far: real ones have two or three levels.
constexpr unsigned highest_tree = 16;

struct OldTree {
  const Walk& walk;
  std::uint8_t type;
  std::uint64_t key_bytes;
  const std::function<void(View, std::uint64_t)>& use;

  void visit(std::uint64_t address, unsigned most_levels) const {
    constexpr std::uint64_t prefix_bytes = 24;
    Cursor fields = walk.structure(address, prefix_bytes, node_text, "TREE", type, Walk::Checksum::none);
    const std::uint8_t level = fields.u8();
    const std::uint16_t entries = fields.u16();
    walk.require_intact(level < most_levels, "the levels of the B-tree do not decrease");
    Cursor children(walk,
                    walk.bytes(address + prefix_bytes, entries * (key_bytes + 8) + key_bytes, node_text),
                    node_text);
    for (unsigned i = 0; i < entries; ++i) {
      const View key = children.take(key_bytes);
      const std::uint64_t child = children.u64();
      if (level > 0)
        visit(child, level);
      else
        use(key, child);
    }
  }
};

struct NewTree {
  const Walk& walk;
  std::uint8_t type;
  const std::function<void(View)>& use;
  std::uint32_t node_bytes = 0;
  std::uint16_t record_bytes = 0;
  unsigned count_bytes = 0;                              // of the number of records of a child
  std::array<unsigned, highest_tree + 1> total_bytes{};  // of the number of records below a node, by level

  // A node has a signature, version, type and checksum beside its records and children.
  static constexpr std::uint64_t overhead = 10;

  std::uint64_t pointer_bytes(unsigned level) const { return 8 + count_bytes + total_bytes[level - 1]; }

  void prepare(unsigned depth) {
    walk.require_intact(node_bytes > overhead && record_bytes > 0 && node_bytes - overhead >= record_bytes,
                        "the nodes of the B-tree are too small");
    std::uint64_t most_below = (node_bytes - overhead) / record_bytes;
    count_bytes = bytes_for(most_below);
    for (unsigned level = 1; level <= depth; ++level) {
      const std::uint64_t pointer = pointer_bytes(level);
      walk.require_intact(node_bytes > overhead + pointer, "the nodes of the B-tree are too small");
      const std::uint64_t most = (node_bytes - overhead - pointer) / (record_bytes + pointer);
      // Beyond 64 bits no file goes.
      walk.require_intact(most < (~std::uint64_t{0} - most) / (most_below + 1) / 2, "the B-tree is too high");
      most_below = (most + 1) * most_below + most;
      total_bytes[level] = bytes_for(most_below);
    }
  }

  void visit(std::uint64_t address, std::uint64_t records, unsigned level) const {
    const std::uint64_t pointer = level > 0 ? pointer_bytes(level) : 0;
    const std::uint64_t children = level > 0 ? records + 1 : 0;
    const std::uint64_t size = overhead + records * record_bytes + children * pointer;
    walk.require_intact(size <= node_bytes, "a node of the B-tree has too many records");
    Cursor fields = walk.structure(address, size, node_text, level > 0 ? "BTIN" : "BTLF");
    fields.version(type);
    for (std::uint64_t i = 0; i < records; ++i) use(fields.take(record_bytes));
    for (std::uint64_t i = 0; i < children; ++i) {
      const std::uint64_t child = fields.u64(), below = fields.number(count_bytes);
      fields.skip(total_bytes[level - 1]);
      visit(child, below, level - 1);
    }
  }
};

}  // namespace

void for_each_child(const Walk& walk, std::uint64_t root, std::uint8_t type, std::uint64_t key_bytes,
                    const std::function<void(View, std::uint64_t)>& use) {
  OldTree{walk, type, key_bytes, use}.visit(root, highest_tree);
}

void for_each_record(const Walk& walk, std::uint64_t header, std::uint8_t type,
                     const std::function<void(View)>& use) {
  constexpr std::uint64_t header_bytes = 38;
  Cursor fields = walk.structure(header, header_bytes, tree_text, "BTHD");
  fields.version(type);
  NewTree tree{walk, type, use};
  tree.node_bytes = fields.u32();
  tree.record_bytes = fields.u16();
  const std::uint16_t depth = fields.u16();
  fields.skip(2);  // when nodes are split and merged
  const std::uint64_t root = fields.u64();
  const std::uint16_t records = fields.u16();
  walk.require_intact(depth < highest_tree, "the B-tree is too high");
  tree.prepare(depth);
  if (records > 0) tree.visit(root, records, depth);
}

}  // namespace annulus::io::hdf5
