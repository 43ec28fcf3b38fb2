#include <zlib.h>

#include "layout.hpp"

namespace annulus::io::hdf5 {

namespace {

constexpr std::size_t fletcher32_bytes = 4;

// Fletcher's checksum over 16-bit big-endian words, as HDF5 has it.
std::uint32_t fletcher32(View bytes) {
  std::uint32_t a = 0, b = 0;
  const auto fold = [](std::uint32_t sum) { return (sum & 0xffff) + (sum >> 16); };
  const auto add = [&](std::uint32_t word) {
    a += word;
    b += a;
  };
  constexpr std::size_t words_at_once = 360;  // sums that 32 bits hold
  std::size_t words = bytes.size() / 2, at = 0;
  while (words > 0) {
    const std::size_t count = std::min(words, words_at_once);
    words -= count;
    for (std::size_t i = 0; i < count; ++i, at += 2) add(std::uint32_t{bytes[at]} << 8 | bytes[at + 1]);
    a = fold(a);
    b = fold(b);
  }
  if (bytes.size() % 2 != 0) {
    add(std::uint32_t{bytes.back()} << 8);
    a = fold(a);
    b = fold(b);
  }
  return fold(b) << 16 | fold(a);
}

void check_fletcher32(const Walk& walk, Bytes& bytes) {
  walk.require_intact(bytes.size() >= fletcher32_bytes, "a chunk is shorter than its checksum");
  const std::size_t size = bytes.size() - fletcher32_bytes;
  const auto stored = static_cast<std::uint32_t>(little_endian(View(bytes).subspan(size)));
  bytes.resize(size);
  const std::uint32_t sum = fletcher32(bytes);
  // HDF5 before 1.6.3 swapped the bytes of each half, and still reads such files.
  const std::uint32_t swapped = (sum & 0x00ff00ff) << 8 | (sum >> 8 & 0x00ff00ff);
  walk.require_intact(stored == sum || stored == swapped, "the checksum (fletcher32) of a chunk is wrong");
}

// Bytes of one place in all elements follow each other; those of an incomplete element come last.
Bytes unshuffle(const Bytes& bytes, std::uint32_t element_bytes) {
  Bytes out(bytes);
  const std::size_t elements = bytes.size() / element_bytes;
  for (std::size_t place = 0; place < element_bytes; ++place) {
    for (std::size_t i = 0; i < elements; ++i) out[i * element_bytes + place] = bytes[place * elements + i];
  }
  return out;
}

Bytes inflate_at_most(const Walk& walk, const Bytes& bytes, std::size_t most) {
  Bytes out(most + 1);  // one more shows what is too long, and is never empty
  z_stream stream{};
  if (::inflateInit(&stream) != Z_OK)
    fail("'{}': zlib cannot be started: free some memory", walk.source().path());
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = ::inflate(&stream, Z_FINISH);
  out.resize(out.size() - stream.avail_out);
  ::inflateEnd(&stream);
  walk.require_intact(result == Z_STREAM_END && out.size() <= most, "a chunk cannot be unpacked (gzip)");
  return out;
}

}  // namespace

Bytes unpack(const Walk& walk, const StoredLayout& layout, std::uint32_t element_bytes,
             const StoredChunk& chunk) {
  Bytes bytes(chunk.size);
  walk.source().read(chunk.address, bytes);
  const std::size_t most = layout.chunk_bytes + fletcher32_bytes * layout.filters.size();
  for (std::size_t i = layout.filters.size(); i-- > 0;) {
    if ((chunk.skipped_filters >> i & 1) != 0) continue;
    switch (layout.filters[i]) {
      case Filter::deflate:
        bytes = inflate_at_most(walk, bytes, most);
        break;
      case Filter::shuffle:
        bytes = unshuffle(bytes, element_bytes);
        break;
      case Filter::fletcher32:
        check_fletcher32(walk, bytes);
        break;
    }
  }
  walk.require_intact(bytes.size() == layout.chunk_bytes, "a chunk has a wrong size");
  return bytes;
}

}  // namespace annulus::io::hdf5
