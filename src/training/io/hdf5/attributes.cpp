#include "attributes.hpp"

#include <algorithm>

#include "training/io/crc32.hpp"

namespace annulus::io::hdf5 {

namespace {

constexpr std::string_view attribute_text = "an attribute";

void add_attribute(const Walk& walk, StoredAttributes& attributes, View message) {
  Cursor fields(walk, message, attribute_text);
  const std::uint8_t version = fields.u8(), flags = fields.u8();
  walk.require_intact(version >= 1 && version <= 3, "an attribute has an unknown version");
  const std::uint16_t name_bytes = fields.u16(), type_bytes = fields.u16(), space_bytes = fields.u16();
  if (version == 3) fields.skip(1);  // character set
  const auto field = [&](std::uint64_t size) {
    const View value = fields.take(size);
    if (version == 1) fields.skip((8 - size % 8) % 8);
    return value;
  };
  const View name = field(name_bytes), type = field(type_bytes), space = field(space_bytes);
  StoredAttribute attribute;
  if (version == 1 || (flags & 3) == 0) {  // otherwise type or space stand elsewhere
    attribute.type = decode_type(walk, type);
    if (const auto shape = decode_space(walk, space)) attribute.elements = elements_of(shape->extents);
    const View data = fields.take(fields.left());
    if (attribute.elements == 1) {
      walk.require_intact(attribute.type.size <= data.size(), "an attribute is shorter than its type");
      attribute.data.assign(data.begin(), data.begin() + attribute.type.size);
    }
  }
  const auto end = std::find(name.begin(), name.end(), std::uint8_t{0});
  walk.spend(name.size() + sizeof attribute + attribute.data.size());
  if (!attributes.emplace(std::string(name.begin(), end), std::move(attribute)).second)
    walk.damaged("two attributes have one name");
}

void add_dense_attributes(const Walk& walk, StoredAttributes& attributes, View attribute_info) {
  constexpr std::uint8_t attributes_by_name = 8, shared_flag = 2;
  constexpr std::uint64_t id_bytes = 8;
  Cursor fields(walk, attribute_info, "the attribute info");
  fields.version(0);
  if ((fields.u8() & 1) != 0) fields.skip(2);  // order of creation
  const std::uint64_t heap_address = fields.u64(), tree = fields.u64();
  if (heap_address == no_address) return;
  FractalHeap heap(walk, heap_address);
  for_each_record(walk, tree, attributes_by_name, [&](View record) {
    Cursor id(walk, record, "a record of the B-tree");
    const View in_heap = id.take(id_bytes);
    if ((id.u8() & shared_flag) == 0) add_attribute(walk, attributes, heap.object(walk, in_heap));
  });
}

}  // namespace

StoredAttributes read_attributes(const Walk& walk, const ObjectHeader& header) {
  StoredAttributes attributes;
  for (const HeaderMessage& message : header.messages()) {
    if (message.type == MessageType::attribute && !message.shared)
      add_attribute(walk, attributes, message.data);
  }
  if (const auto info = header.find(walk, MessageType::attribute_info))
    add_dense_attributes(walk, attributes, *info);
  return attributes;
}

std::string text_of(const Walk& walk, const StoredAttribute& attribute, GlobalHeap& heap) {
  View bytes = attribute.data;
  if (attribute.type.kind == StoredType::Kind::variable_text) {
    Cursor fields(walk, attribute.data, attribute_text);
    const std::uint32_t length = fields.u32();
    const std::uint64_t collection = fields.u64();
    if (length == 0 || collection == 0 || collection == no_address) return "";
    bytes = heap.object(walk, collection, fields.u32());
    walk.require_intact(length <= bytes.size(), "a string is longer than its place in the global heap");
    bytes = bytes.first(length);
  }
  std::string text(bytes.begin(), std::find(bytes.begin(), bytes.end(), std::uint8_t{0}));
  while (attribute.type.padded_with_spaces && !text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::uint32_t strings_crc32(const Walk& walk, const StoredAttributes& attributes, GlobalHeap& heap) {
  std::uint32_t crc = 0;
  const auto add = [&](const std::string& text) {  // with the NUL at its end
    crc = crc32_of(std::span<const char>(text.c_str(), text.size() + 1), crc);
  };
  for (const auto& [name, attribute] : attributes) {
    if (attribute.elements != 1 || attribute.type.kind != StoredType::Kind::variable_text) continue;
    add(name);
    add(text_of(walk, attribute, heap));
  }
  return crc;
}

}  // namespace annulus::io::hdf5
