#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>

#include "base/file.hpp"

namespace annulus::io::hdf5 {

using Bytes = std::vector<std::uint8_t>;
using View = std::span<const std::uint8_t>;

/// HDF5's "undefined address".
inline constexpr std::uint64_t no_address = ~std::uint64_t{0};

/// What to do about a file that contradicts itself: the end of every message about one.
inline constexpr const char* damage_advice = "the file is damaged; copy or write it again";

/// An HDF5 file opened for reading. Addresses count from the base address of its superblock. Every read is
/// checked against the size of the file, and all metadata together against a budget, because intact files
/// hold each structure once: so neither time nor memory grows beyond what the file can hold.
class Source {
 public:
  /// Opens and locks (shared) the file and reads its superblock. Throws Error that tells a missing file, an
  /// empty one, one that is not HDF5, a truncated one and one that another program writes apart.
  explicit Source(const std::filesystem::path& path);

  const std::string& path() const { return file_.path(); }

  /// Address of the root group's object header.
  std::uint64_t root() const { return root_; }

  /// Bytes from the base address to the end of the file.
  std::uint64_t size() const { return size_; }

  bool holds(std::uint64_t address, std::uint64_t size) const {
    return address <= size_ && size <= size_ - address;
  }

  /// Reads out.size() bytes, which the file holds.
  void read(std::uint64_t address, std::span<std::uint8_t> out) const;

  /// Counts bytes of metadata. False when an intact file of this size cannot have that many.
  bool spend(std::uint64_t bytes) const;

 private:
  void find_superblock();
  void read_superblock(View start);

  InputFile file_;
  std::uint64_t base_ = 0, size_, root_ = 0;
  mutable std::atomic<std::uint64_t> budget_{0};
};

class Cursor;

/// The reading of one object's metadata: names file and object in every error.
class Walk {
 public:
  Walk(const Source& source, std::string object) : source_(source), object_(std::move(object)) {}

  const Source& source() const { return source_; }
  const std::string& object() const { return object_; }

  /// `size` bytes of metadata at `address`. `what` names them: "the object header".
  Bytes bytes(std::uint64_t address, std::uint64_t size, std::string_view what) const;

  /// bytes() of at most `size` bytes: fewer where the file ends before.
  Bytes bytes_up_to(std::uint64_t address, std::uint64_t size, std::string_view what) const;

  /// The structure of so many bytes at an address, behind its signature ("TREE") and `version`; `checksum`:
  /// its last four bytes are that of the others, and right.
  enum class Checksum : bool { none, last };
  Cursor structure(std::uint64_t address, std::uint64_t size, std::string_view what,
                   std::string_view signature, std::uint8_t version = 0,
                   Checksum checksum = Checksum::last) const;

  /// Counts what is derived from metadata against the file's budget.
  void spend(std::uint64_t bytes) const;

  /// Throws Error "'<file>': '<object>': <what>: the file is damaged; …".
  [[noreturn]] void damaged(std::string_view what) const;
  void require_intact(bool intact, std::string_view what) const {
    if (!intact) damaged(what);
  }

  /// Throws Error "'<file>': '<object>' <what>: <remedy>" about what HDF5 has and Annulus does not read.
  [[noreturn]] void refuse(std::string_view what, std::string_view remedy) const;

 private:
  const Source& source_;
  std::string object_;
};

/// Takes little-endian fields off the front of a structure, whose bytes it may own. Throws Error when it ends
/// too early.
class Cursor {
 public:
  Cursor(const Walk& walk, View bytes, std::string_view what) : walk_(walk), left_(bytes), what_(what) {}
  Cursor(const Walk& walk, Bytes&& bytes, std::string_view what)
      : walk_(walk), bytes_(std::move(bytes)), left_(bytes_), what_(what) {}
  Cursor(Cursor&&) = default;

  std::size_t left() const { return left_.size(); }
  View take(std::uint64_t size);
  void skip(std::uint64_t size) { take(size); }
  std::uint64_t number(unsigned bytes);
  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }

  /// Takes a signature ("TREE") or a version, and throws Error when it is another one.
  void signature(std::string_view expected);
  void version(std::uint8_t expected);

 private:
  const Walk& walk_;
  Bytes bytes_;
  View left_;
  std::string_view what_;
};

/// The number in `bytes` (8 at most), little-endian.
std::uint64_t little_endian(View bytes);

/// Bytes that hold every number up to `limit`: HDF5's rule for the width of lengths and counts.
unsigned bytes_for(std::uint64_t limit);

/// Jenkins' lookup3, the checksum of HDF5's metadata since version 1.8.
std::uint32_t lookup3(View bytes);

/// Throws Error unless the last four bytes are the checksum of those before them.
void require_checksum(const Walk& walk, View structure, std::string_view what);

/// Throws Error unless `stored` is the checksum of `bytes`.
void require_equal_checksum(const Walk& walk, std::uint64_t stored, View bytes, std::string_view what);

}  // namespace annulus::io::hdf5
