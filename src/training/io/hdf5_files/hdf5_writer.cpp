#include "training/io/hdf5_files/hdf5_writer.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <variant>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/system/descriptor.hpp"
#include "base/system/system_error.hpp"
#include "training/io/atomic.hpp"
#include "training/io/crc32.hpp"
#include "training/io/hdf5/object_header.hpp"
#include "training/io/hdf5/types.hpp"

namespace annulus::io {

namespace hdf5 {

/// A group or, with a type, a dataset.
struct WrittenObject {
  explicit WrittenObject(std::string name = {}) : name(std::move(name)) {}
  std::string name;
  std::map<std::string, std::variant<std::int64_t, double, std::string>> attributes;
  std::map<std::string, std::unique_ptr<WrittenObject>> members;
  std::optional<DType> type;
  Extents extents;
  std::uint64_t address = no_address;  // of the elements
};

struct WrittenFile {
  WrittenFile(std::string path, Descriptor descriptor)
      : path(std::move(path)), descriptor(std::move(descriptor)) {}
  std::string path;
  Descriptor descriptor;
  WrittenObject root;
  std::uint64_t end = 48;  // of what has its place: the superblock, elements
};

namespace {

constexpr std::uint64_t alignment = 8;

/// A number and its bytes in the file.
struct Field {
  std::uint64_t value;
  unsigned bytes;
};

/// Bytes of metadata, little-endian.
class Encoder {
 public:
  Encoder() = default;
  Encoder(std::initializer_list<Field> fields) { append(fields); }

  Encoder& append(std::initializer_list<Field> fields) {
    for (const Field& field : fields)
      for (unsigned i = 0; i < field.bytes; ++i)
        bytes_.push_back(static_cast<std::uint8_t>(field.value >> (8 * i)));
    return *this;
  }
  Encoder& append(std::string_view text) {
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    return *this;
  }
  Encoder& append(const Encoder& other) {
    bytes_.insert(bytes_.end(), other.bytes_.begin(), other.bytes_.end());
    return *this;
  }
  Encoder& append_checksum() { return append({{lookup3(bytes_), 4}}); }
  Encoder& pad_to(std::size_t size) {
    bytes_.resize(std::max(bytes_.size(), size));
    return *this;
  }
  /// Appends a message of an object header.
  void append_message(MessageType type, const Encoder& content) {
    require(content.size() <= std::numeric_limits<std::uint16_t>::max(),
            "a name or attribute of {} bytes is too long for HDF5: shorten it", content.size());
    append({{static_cast<std::uint16_t>(type), 1}, {content.size(), 2}, {0, 1}}).append(content);
  }
  void overwrite(std::size_t at, const Encoder& with) {
    std::ranges::copy(with.bytes_, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  std::size_t size() const { return bytes_.size(); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  Bytes bytes_;
};

Encoder integer_type(unsigned bytes, bool is_signed) {
  return {{0x10, 1}, {is_signed ? 8u : 0u, 3}, {bytes, 4}, {0, 2}, {8 * bytes, 2}};
}

Encoder type_of(DType type) {
  // Where IEEE 754 has the fields of a float: its last bit is the sign.
  const auto real = [](unsigned bytes, unsigned exponent, unsigned exponent_bits, unsigned bias) -> Encoder {
    const unsigned bits = 8 * bytes;
    return {{0x11, 1},     {0x20u | (bits - 1) << 8, 3}, {bytes, 4}, {0, 2},        {bits, 2},
            {exponent, 1}, {exponent_bits, 1},           {0, 1},     {exponent, 1}, {bias, 4}};
  };
  require(type != DType::bf16 && type != DType::f16,
          "files hold no {}: store 16-bit floats as f32, or bit for bit as u16", name_of(type));
  if (type == DType::f32) return real(4, 23, 8, 127);
  if (type == DType::f64) return real(8, 52, 11, 1023);
  return integer_type(static_cast<unsigned>(size_of(type)), type == DType::i32 || type == DType::i64);
}

/// Strings of variable length, in UTF-8.
Encoder text_type() {
  return Encoder{{0x19, 1}, {0x101, 3}, {16, 4}}.append(integer_type(1, false));
}

Encoder space_of(const Extents& extents) {
  Encoder space{{2, 1}, {extents.size(), 1}, {0, 1}, {extents.empty() ? 0u : 1u, 1}};
  for (const std::uint64_t extent : extents) space.append({{extent, 8}});
  return space;
}

/// The metadata of a file, which follows its elements: strings, then the headers of objects, those of members
/// before those of their groups.
class Metadata {
 public:
  explicit Metadata(std::uint64_t begin) : begin_(begin) {}

  /// Adds an object and all below; where its header lies.
  std::uint64_t add(const WrittenObject& object) {
    Encoder messages;
    if (object.type) {
      const std::uint64_t bytes = *elements_of(object.extents) * size_of(*object.type);
      messages.append_message(MessageType::dataspace, space_of(object.extents));
      messages.append_message(MessageType::datatype, type_of(*object.type));
      messages.append_message(MessageType::fill_value, {{3, 1}, {9, 1}});  // allocated early, without a value
      messages.append_message(MessageType::layout, {{3, 1}, {1, 1}, {object.address, 8}, {bytes, 8}});
    } else {
      messages.append_message(MessageType::link_info, {{0, 2}, {no_address, 8}, {no_address, 8}});
      messages.append_message(MessageType::group_info, {{0, 2}});
      for (const auto& [name, member] : object.members)
        messages.append_message(
            MessageType::link,
            Encoder{{1, 1}, {1, 1}, {name.size(), 2}}.append(name).append({{add(*member), 8}}));
    }
    std::uint32_t crc = 0;
    bool has_strings = false;
    const auto add_integer = [&](const std::string& name, std::int64_t value) {
      append_attribute(messages, name, type_of(DType::i64), {{static_cast<std::uint64_t>(value), 8}});
    };
    for (const auto& [name, value] : object.attributes)
      if (const auto* text = std::get_if<std::string>(&value)) {
        has_strings = true;
        for (const std::string* part : {&name, text})
          crc = crc32_of(std::span<const char>(part->c_str(), part->size() + 1), crc);
        append_attribute(messages, name, text_type(), place_of(*text));
      } else if (const auto* real = std::get_if<double>(&value)) {
        append_attribute(messages, name, type_of(DType::f64), {{std::bit_cast<std::uint64_t>(*real), 8}});
      } else {
        add_integer(name, std::get<std::int64_t>(value));
      }
    if (has_strings) add_integer(strings_attribute, crc);
    Encoder header;
    header.append("OHDR").append({{2, 1}, {2, 1}, {messages.size(), 4}}).append(messages).append_checksum();
    return append(header);
  }

  const Encoder& all() const { return all_; }
  std::uint64_t end() const { return begin_ + all_.size(); }

 private:
  static void append_attribute(Encoder& messages, const std::string& name, const Encoder& type,
                               const Encoder& value) {
    const Encoder space = space_of({});
    Encoder content{{3, 1}, {0, 1}, {name.size() + 1, 2}, {type.size(), 2}, {space.size(), 2}, {1, 1}};
    content.append(name).append({{0, 1}}).append(type).append(space).append(value);
    messages.append_message(MessageType::attribute, content);
  }

  /// Puts a string into a global heap; where it lies, as an attribute says it.
  Encoder place_of(const std::string& text) {
    constexpr std::size_t least_heap = 4096, header = 16;  // of a heap, and of each object in it
    if (text.empty()) return {{0, 8}, {0, 8}};
    const std::size_t bytes = header + round_up(text.size(), alignment);
    if (used_ + bytes + header > heap_bytes_) {
      heap_bytes_ = std::max(least_heap, header + bytes + header);
      used_ = header;
      strings_ = 0;
      Encoder heap;
      heap.append("GCOL").append({{1, 4}, {heap_bytes_, 8}}).pad_to(heap_bytes_);
      heap_ = append(heap);
    }
    const std::uint64_t at = heap_ - begin_ + used_;
    used_ += bytes;
    all_.overwrite(at, Encoder{{++strings_, 2}, {1, 6}, {text.size(), 8}}.append(text));
    all_.overwrite(at + bytes, {{0, 8}, {heap_bytes_ - used_, 8}});  // what is free
    return {{text.size(), 4}, {heap_, 8}, {strings_, 4}};
  }

  std::uint64_t append(const Encoder& structure) {
    const std::uint64_t at = end();
    all_.append(structure).pad_to(round_up(all_.size(), alignment));
    return at;
  }

  std::uint64_t begin_;
  Encoder all_;
  std::uint64_t heap_ = 0, heap_bytes_ = 0, used_ = 0, strings_ = 0;  // the heap that is being filled
};

}  // namespace
}  // namespace hdf5

const std::string& ObjectWriter::file() const {
  return file_->path;
}
const std::string& ObjectWriter::name() const {
  return object_->name;
}

void ObjectWriter::set_attribute(const std::string& name, std::string_view value) {
  object_->attributes[name] = std::string(value.substr(0, value.find('\0')));
}
void ObjectWriter::set_attribute(const std::string& name, double value) {
  object_->attributes[name] = value;
}
void ObjectWriter::set_attribute(const std::string& name, std::int64_t value) {
  object_->attributes[name] = value;
}

DType DatasetWriter::type() const {
  return *object_->type;
}
const Extents& DatasetWriter::extents() const {
  return object_->extents;
}

void DatasetWriter::write_selection(DType type, std::span<const std::byte> values, const Hyperslab* part) {
  const Extents& extents = object_->extents;
  const std::size_t rank = extents.size(), element = size_of(type);
  require(type == this->type(), "'{}': the dataset '{}' takes {}, not {}", file(), name(),
          name_of(this->type()), name_of(type));
  require(file_->descriptor.get() >= 0, "'{}' is closed: write the dataset '{}' before", file(), name());
  const Hyperslab slab = part != nullptr ? *part : Hyperslab{Extents(rank, 0), extents};
  require(slab.start.size() == rank && slab.count.size() == rank && slab.stride.empty() && slab.block.empty(),
          "'{}': the part of the dataset '{}' that is to be written has {} dimensions, the dataset {}",
          file(), name(), slab.start.size(), rank);
  for (std::size_t d = 0; d < rank; ++d)
    require(
        slab.count[d] <= extents[d] && slab.start[d] <= extents[d] - slab.count[d],
        "'{}': the part of the dataset '{}' that is to be written ends at {} of dimension {}, which has {}",
        file(), name(), slab.start[d] + slab.count[d], d, extents[d]);
  require(values.size() == slab.elements() * element,
          "'{}': {} elements were given for {} of the dataset '{}'", file(), values.size() / element,
          slab.elements(), name());
  if (values.empty()) return;
  // A stretch: the last dimensions, as far as they go whole, and what is written of the one before.
  std::size_t outer = rank;
  std::uint64_t stretch = element;
  while (outer > 0) {
    stretch *= slab.count[--outer];
    if (slab.count[outer] != extents[outer]) break;
  }
  for (Extents turn(outer, 0);;) {
    std::uint64_t at = 0;
    for (std::size_t d = 0; d < rank; ++d) at = at * extents[d] + slab.start[d] + (d < outer ? turn[d] : 0);
    const bool written =
        write_at(file_->descriptor.get(), object_->address + at * element, values.first(stretch));
    require_system(written, fmt::format("write '{}' to", name()), file());
    values = values.subspan(stretch);
    std::size_t d = outer;
    while (d > 0 && ++turn[d - 1] == slab.count[d - 1]) turn[--d] = 0;
    if (d == 0) return;
  }
}

FileWriter FileWriter::create(const std::filesystem::path& path) {
  auto file = std::make_shared<hdf5::WrittenFile>(path.string(), new_file(path));
  file->root.name = "/";
  hdf5::WrittenObject& root = file->root;
  return FileWriter(std::move(file), root);
}

DatasetWriter FileWriter::create_dataset(const std::string& name, DType type, const Extents& extents) {
  const std::string full = name.starts_with('/') ? name : "/" + name;
  hdf5::type_of(type);  // which the format must have
  hdf5::WrittenObject* object = object_;
  bool is_new = false;
  for (std::size_t begin = 1, end = 0; begin <= full.size(); begin = end + 1) {
    end = std::min(full.find('/', begin), full.size());
    require(end > begin && !object->type, "cannot make the dataset '{}' in '{}': '{}' is no group", full,
            file(), object->name);
    auto& member = object->members[full.substr(begin, end - begin)];
    is_new = member == nullptr;
    if (is_new) member = std::make_unique<hdf5::WrittenObject>(full.substr(0, end));
    object = member.get();
  }
  require(is_new, "cannot make the dataset '{}' in '{}': there is something of this name: choose another one",
          full, file());
  object->type = type;
  object->extents = extents;
  const auto elements = hdf5::elements_of(extents);
  require(elements && *elements < std::numeric_limits<std::int64_t>::max() / 16,
          "cannot make the dataset '{}' in '{}': its extents are impossible", full, file());
  if (*elements > 0) {
    object->address = round_up(file_->end, hdf5::alignment);
    file_->end = object->address + *elements * size_of(type);
  }
  return DatasetWriter(file_, *object);
}

void FileWriter::close() {
  if (file_->descriptor.get() < 0) return;
  const std::uint64_t begin = round_up(file_->end, hdf5::alignment);
  hdf5::Metadata metadata(begin);
  const std::uint64_t root = metadata.add(file_->root);
  hdf5::Encoder superblock;
  superblock.append("\x89HDF\r\n\x1a\n")
      .append({{2, 1}, {8, 1}, {8, 1}, {0, 1}, {0, 8}, {hdf5::no_address, 8}});
  superblock.append({{metadata.end(), 8}, {root, 8}}).append_checksum();
  const int descriptor = file_->descriptor.get();
  const bool written =
      write_at(descriptor, begin, metadata.all().bytes()) && write_at(descriptor, 0, superblock.bytes());
  const bool closed = ::close(file_->descriptor.release()) == 0;
  require_system(written && closed, "write", file());
}

void write_hdf5_atomically(const std::filesystem::path& path, const std::function<void(FileWriter&)>& write) {
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    FileWriter file = FileWriter::create(temporary);
    write(file);
    file.close();
  });
}

}  // namespace annulus::io
