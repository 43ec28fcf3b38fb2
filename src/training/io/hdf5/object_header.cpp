#include "object_header.hpp"

#include <algorithm>

namespace annulus::io::hdf5 {

namespace {

constexpr std::string_view header_text = "the object header";

// Signature or version, flags, times, limits of attributes, size of the first piece.
constexpr std::uint64_t longest_prefix = 34;

}  // namespace

ObjectHeader::ObjectHeader(const Walk& walk, std::uint64_t address) {
  const Bytes start = walk.bytes_up_to(address, 4, header_text);
  if (!start.empty() && start[0] == 'O') {
    read_new(walk, address);
  } else {
    read_old(walk, address);
  }
}

void ObjectHeader::read_old(const Walk& walk, std::uint64_t address) {
  constexpr std::uint64_t prefix_bytes = 16;
  Cursor fields(walk, walk.bytes(address, prefix_bytes, header_text), header_text);
  fields.version(1);
  fields.skip(7);  // reserved, number of messages, links to the object
  continuations_.push_back({address + prefix_bytes, fields.u32()});
  while (!continuations_.empty()) {
    const HeaderBlock piece = continuations_.front();
    continuations_.pop_front();
    bytes_.push_back(walk.bytes(piece.address, piece.size, header_text));
    add_messages(walk, bytes_.back(), true, false);
  }
}

void ObjectHeader::read_new(const Walk& walk, std::uint64_t address) {
  const Bytes prefix = walk.bytes_up_to(address, longest_prefix, header_text);
  Cursor fields(walk, prefix, header_text);
  fields.signature("OHDR");
  fields.version(2);
  const std::uint8_t flags = fields.u8();
  const bool has_order = (flags & 4) != 0;
  if ((flags & 32) != 0) fields.skip(16);
  if ((flags & 16) != 0) fields.skip(4);
  const std::uint64_t size = fields.number(1u << (flags & 3));
  const std::uint64_t prefix_bytes = prefix.size() - fields.left();
  walk.require_intact(size <= walk.source().size(), "the object header is larger than the file");
  bytes_.push_back(walk.bytes(address, prefix_bytes + size + 4, header_text));
  require_checksum(walk, bytes_.back(), header_text);
  add_messages(walk, View(bytes_.back()).subspan(prefix_bytes, size), false, has_order);
  while (!continuations_.empty()) {
    const HeaderBlock piece = continuations_.front();
    continuations_.pop_front();
    bytes_.push_back(walk.bytes(piece.address, piece.size, header_text));
    require_checksum(walk, bytes_.back(), header_text);
    Cursor next(walk, bytes_.back(), header_text);
    next.signature("OCHK");
    add_messages(walk, next.take(next.left() - 4), false, has_order);
  }
}

void ObjectHeader::add_messages(const Walk& walk, View bytes, bool old, bool has_order) {
  Cursor fields(walk, bytes, header_text);
  const std::size_t least = old ? 8 : has_order ? 6 : 4;
  while (fields.left() >= least) {
    const auto type = static_cast<MessageType>(old ? fields.u16() : fields.u8());
    const std::uint16_t size = fields.u16();
    const std::uint8_t flags = fields.u8();
    fields.skip(old ? 3 : has_order ? 2 : 0);
    const View data = fields.take(size);
    if (type == MessageType::continuation) {
      Cursor piece(walk, data, "a continuation of the object header");
      const std::uint64_t address = piece.u64();
      continuations_.push_back({address, piece.u64()});
      // Each piece costs, so that pieces without bytes that name each other come to an end.
      walk.spend(16);
    } else if (type != MessageType::nil) {
      messages_.push_back({type, (flags & 2) != 0, data});
    }
  }
}

std::optional<View> ObjectHeader::find(const Walk& walk, MessageType type) const {
  const auto found = std::ranges::find(messages_, type, &HeaderMessage::type);
  if (found == messages_.end()) return std::nullopt;
  if (found->shared)
    walk.refuse("uses a named type or a shared header message, which Annulus does not read",
                "write it again without (h5repack)");
  return found->data;
}

}  // namespace annulus::io::hdf5
