#include "source.hpp"

#include <sys/file.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/system/system_error.hpp"

namespace annulus::io::hdf5 {

namespace {

constexpr std::string_view file_signature = "\x89HDF\r\n\x1a\n";

/// Metadata of a file beyond which it is refused, whatever its size.
constexpr std::uint64_t most_metadata = std::uint64_t{256} << 20;

/// Some structures are read in two steps, and names and indices count a second time when they are decoded.
constexpr std::uint64_t metadata_factor = 4;

InputFile open_locked(const std::filesystem::path& path) {
  InputFile file(path, kinds::hdf5);
  // What HDF5 does to a file that it reads. On file systems that have no locks reading must go on.
  const bool locked = ::flock(file.descriptor(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  require_system(locked, "open", path);
  return file;
}

[[noreturn]] void fail_truncated(const std::string& path) {
  fail("'{}' is truncated: the file is incomplete; copy or write it again", path);
}

}  // namespace

Source::Source(const std::filesystem::path& path) : file_(open_locked(path)), size_(file_.size()) {
  require(size_ > 0, "'{}' is empty: copy or write it again", file_.path());
  budget_ = std::min(most_metadata, metadata_factor * size_ + 4096);
  find_superblock();
}

// The superblock is at 0, or behind a user block of 512, 1024, 2048 … bytes.
void Source::find_superblock() {
  for (std::uint64_t at = 0; holds(at, file_signature.size()); at = at == 0 ? 512 : 2 * at) {
    Bytes start(std::min<std::uint64_t>(128, size_ - at));
    read(at, start);
    if (!std::equal(file_signature.begin(), file_signature.end(), start.begin(),
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; }))
      continue;
    base_ = at;
    size_ -= at;
    return read_superblock(start);
  }
  fail("'{}' is not an HDF5 file: check the path, or write it again", path());
}

void Source::read_superblock(View start) {
  const Walk walk(*this, "superblock");
  if (start.size() < 48) fail_truncated(path());
  Cursor fields(walk, start, "the superblock");
  fields.skip(file_signature.size());
  const std::uint8_t version = fields.u8();
  require(version <= 3,
          "'{}' has a superblock of version {}, Annulus reads 0 to 3: write it with HDF5 1.14 or older "
          "bounds (h5repack --high=4)",
          path(), version);
  const bool old = version <= 1;
  if (old) fields.skip(4);  // versions of parts, one reserved byte
  const std::uint8_t offset_bytes = fields.u8(), length_bytes = fields.u8();
  if (offset_bytes != 8 || length_bytes != 8)
    walk.refuse("has offsets of other than 8 bytes", "write the file again with h5repack");
  const std::uint8_t flags = fields.u8();
  if (old) fields.skip(version == 0 ? 8 : 12);  // ranks of trees, consistency flags
  if (!old && (flags & 1) != 0)
    walk.refuse("says that a program is writing the file, or was interrupted",
                "wait until it has ended, or write the file again");
  const std::uint64_t base = fields.u64();
  walk.require_intact(base == base_, "the base address is not the place of the superblock");
  fields.skip(8);  // free space, or the extension of the superblock
  const std::uint64_t end = fields.u64();
  if (old) {
    if (fields.u64() != no_address) walk.refuse("is of a file in several parts", "write one file (h5repack)");
    fields.skip(8);  // name of the root group
    root_ = fields.u64();
  } else {
    root_ = fields.u64();
    require_checksum(walk, start.first(48), "the superblock");
  }
  if (end > base_ + size_) fail_truncated(path());
}

void Source::read(std::uint64_t address, std::span<std::uint8_t> out) const {
  if (file_.read_at(base_ + address, std::as_writable_bytes(out)) < out.size()) fail_truncated(path());
}

bool Source::spend(std::uint64_t bytes) const {
  std::uint64_t left = budget_.load();
  do {
    if (bytes > left) return false;
  } while (!budget_.compare_exchange_weak(left, left - bytes));
  return true;
}

Bytes Walk::bytes(std::uint64_t address, std::uint64_t size, std::string_view what) const {
  if (!source_.holds(address, size))
    damaged(fmt::format("{} ({} bytes at {}) reaches beyond the end of the file", what, size, address));
  spend(size);
  Bytes bytes(size);
  source_.read(address, bytes);
  return bytes;
}

Bytes Walk::bytes_up_to(std::uint64_t address, std::uint64_t size, std::string_view what) const {
  const std::uint64_t end = source_.size();
  return bytes(address, address < end ? std::min(size, end - address) : size, what);
}

Cursor Walk::structure(std::uint64_t address, std::uint64_t size, std::string_view what,
                       std::string_view signature, std::uint8_t version, Checksum checksum) const {
  Bytes all = bytes(address, size, what);
  if (checksum == Checksum::last) require_checksum(*this, all, what);
  Cursor fields(*this, std::move(all), what);
  fields.signature(signature);
  fields.version(version);
  return fields;
}

void Walk::spend(std::uint64_t bytes) const {
  if (source_.spend(bytes)) return;
  damaged("its metadata is larger than that of an intact file can be");
}

void Walk::damaged(std::string_view what) const {
  fail("'{}': '{}': {}: {}", source_.path(), object_, what, damage_advice);
}

void Walk::refuse(std::string_view what, std::string_view remedy) const {
  fail("'{}': '{}' {}: {}", source_.path(), object_, what, remedy);
}

View Cursor::take(std::uint64_t size) {
  if (size > left_.size()) walk_.damaged(fmt::format("{} ends too early", what_));
  const View taken = left_.first(size);
  left_ = left_.subspan(size);
  return taken;
}

std::uint64_t Cursor::number(unsigned bytes) {
  return little_endian(take(bytes));
}

void Cursor::signature(std::string_view expected) {
  const View found = take(expected.size());
  if (!std::equal(found.begin(), found.end(), expected.begin(), expected.end(),
                  [](std::uint8_t a, char b) { return a == static_cast<std::uint8_t>(b); }))
    walk_.damaged(fmt::format("{} does not start with {}", what_, expected));
}

void Cursor::version(std::uint8_t expected) {
  const std::uint8_t found = u8();
  if (found != expected)
    walk_.damaged(fmt::format("{} has the version {}, which is not {}", what_, found, expected));
}

std::uint64_t little_endian(View bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

unsigned bytes_for(std::uint64_t limit) {
  return limit == 0 ? 1 : (static_cast<unsigned>(std::bit_width(limit)) - 1) / 8 + 1;
}

std::uint32_t lookup3(View bytes) {
  std::uint32_t a = 0xdeadbeef + static_cast<std::uint32_t>(bytes.size()), b = a, c = a;
  const auto word = [&](std::size_t at) {
    return static_cast<std::uint32_t>(little_endian(
        at < bytes.size() ? bytes.subspan(at, std::min<std::size_t>(4, bytes.size() - at)) : View()));
  };
  while (bytes.size() > 12) {
    a += word(0), b += word(4), c += word(8);
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
    bytes = bytes.subspan(12);
  }
  if (bytes.empty()) return c;
  a += word(0), b += word(4), c += word(8);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

void require_equal_checksum([[maybe_unused]] const Walk& walk, [[maybe_unused]] std::uint64_t stored,
                            [[maybe_unused]] View bytes, [[maybe_unused]] std::string_view what) {
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION  // fuzzers do not guess checksums
  if (stored != lookup3(bytes)) walk.damaged(fmt::format("the checksum of {} is wrong", what));
#endif
}

void require_checksum(const Walk& walk, View structure, std::string_view what) {
  if (structure.size() < 4) walk.damaged(fmt::format("{} ends too early", what));
  require_equal_checksum(walk, little_endian(structure.last(4)), structure.first(structure.size() - 4), what);
}

}  // namespace annulus::io::hdf5
