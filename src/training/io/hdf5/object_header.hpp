#pragma once

#include <deque>
#include <optional>

#include "source.hpp"

namespace annulus::io::hdf5 {

/// Types of header messages that Annulus knows.
enum class MessageType : std::uint16_t {
  nil = 0x00,
  dataspace = 0x01,
  link_info = 0x02,
  datatype = 0x03,
  fill_value = 0x05,
  link = 0x06,
  external_files = 0x07,
  layout = 0x08,
  group_info = 0x0a,
  filters = 0x0b,
  attribute = 0x0c,
  continuation = 0x10,
  symbol_table = 0x11,
  attribute_info = 0x15,
};

struct HeaderMessage {
  MessageType type;
  bool shared;  // stands elsewhere: what is here tells where
  View data;
};

/// The messages of one object. Owns the bytes that they view.
class ObjectHeader {
 public:
  ObjectHeader(const Walk& walk, std::uint64_t address);

  const std::vector<HeaderMessage>& messages() const { return messages_; }

  /// The first message of a type; nothing when there is none. Throws Error when it is shared.
  std::optional<View> find(const Walk& walk, MessageType type) const;

 private:
  struct HeaderBlock {
    std::uint64_t address, size;
  };
  void read_old(const Walk& walk, std::uint64_t address);
  void read_new(const Walk& walk, std::uint64_t address);
  void add_messages(const Walk& walk, View bytes, bool old, bool has_order);

  std::deque<Bytes> bytes_;
  std::deque<HeaderBlock> continuations_;
  std::vector<HeaderMessage> messages_;
};

}  // namespace annulus::io::hdf5
