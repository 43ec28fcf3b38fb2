#include "links.hpp"

#include <algorithm>

#include "heaps_and_trees.hpp"

namespace annulus::io::hdf5 {

namespace {

void add_link(const Walk& walk, StoredLinks& links, std::string name, const StoredLink& link) {
  // An empty name would stand for the group itself.
  if (name.empty() || name.find('/') != std::string::npos)
    walk.damaged("a member has a name that none can have");
  walk.spend(name.size() + sizeof(StoredLink));
  if (!links.emplace(std::move(name), link).second) walk.damaged("two members have one name");
}

void add_message(const Walk& walk, StoredLinks& links, View message) {
  enum : std::uint8_t { hard_link = 0, soft_link = 1, external_link = 64 };
  Cursor fields(walk, message, "a link");
  fields.version(1);
  const std::uint8_t flags = fields.u8();
  const std::uint8_t kind = (flags & 8) != 0 ? fields.u8() : std::uint8_t{hard_link};
  if ((flags & 4) != 0) fields.skip(8);   // order of creation
  if ((flags & 16) != 0) fields.skip(1);  // character set
  const View text = fields.take(fields.number(1u << (flags & 3)));
  std::string name(text.begin(), text.end());
  StoredLink link;
  if (kind == hard_link) {
    link.address = fields.u64();
  } else {
    link.kind = kind == soft_link       ? StoredLink::Kind::soft
                : kind == external_link ? StoredLink::Kind::external
                                        : StoredLink::Kind::other;
  }
  add_link(walk, links, std::move(name), link);
}

void add_symbols(const Walk& walk, StoredLinks& links, View message) {
  constexpr std::uint8_t group_tree = 0;
  constexpr std::uint64_t key_bytes = 8, prefix_bytes = 8, entry_bytes = 40;
  constexpr std::uint32_t soft_link = 2;
  constexpr std::string_view what = "a table of symbols";
  Cursor fields(walk, message, what);
  const std::uint64_t tree = fields.u64();
  const LocalHeap heap(walk, fields.u64());
  for_each_child(walk, tree, group_tree, key_bytes, [&](View, std::uint64_t node) {
    Cursor head = walk.structure(node, prefix_bytes, what, "SNOD", 1, Walk::Checksum::none);
    head.skip(1);
    const std::uint16_t entries = head.u16();
    Cursor entry(walk, walk.bytes(node + prefix_bytes, entries * entry_bytes, what), what);
    for (unsigned i = 0; i < entries; ++i) {
      std::string name = heap.text(walk, entry.u64());
      StoredLink link;
      link.address = entry.u64();
      if (entry.u32() == soft_link) link.kind = StoredLink::Kind::soft;
      entry.skip(20);
      add_link(walk, links, std::move(name), link);
    }
  });
}

void add_dense_links(const Walk& walk, StoredLinks& links, View link_info) {
  constexpr std::uint8_t links_by_name = 5;
  constexpr std::uint64_t hash_bytes = 4;
  Cursor fields(walk, link_info, "the link info");
  fields.version(0);
  if ((fields.u8() & 1) != 0) fields.skip(8);  // order of creation
  const std::uint64_t heap_address = fields.u64(), tree = fields.u64();
  if (heap_address == no_address) return;
  FractalHeap heap(walk, heap_address);
  for_each_record(walk, tree, links_by_name, [&](View record) {
    Cursor id(walk, record, "a record of the B-tree");
    id.skip(hash_bytes);
    add_message(walk, links, heap.object(walk, id.take(id.left())));
  });
}

}  // namespace

bool is_group(const ObjectHeader& header) {
  return std::ranges::any_of(header.messages(), [](const HeaderMessage& message) {
    return message.type == MessageType::symbol_table || message.type == MessageType::link_info ||
           message.type == MessageType::link;
  });
}

StoredLinks read_links(const Walk& walk, const ObjectHeader& header) {
  StoredLinks links;
  if (const auto table = header.find(walk, MessageType::symbol_table)) add_symbols(walk, links, *table);
  for (const HeaderMessage& message : header.messages()) {
    if (message.type == MessageType::link && !message.shared) add_message(walk, links, message.data);
  }
  if (const auto info = header.find(walk, MessageType::link_info)) add_dense_links(walk, links, *info);
  return links;
}

}  // namespace annulus::io::hdf5
