#include "layout.hpp"

#include <algorithm>
#include <cstring>

namespace annulus::io::hdf5 {

namespace {

/// Unpacked chunks kept: a row of chunks of a matrix, so that its rows can be read one after the other.
constexpr std::uint64_t cache_bytes = std::uint64_t{64} << 20;

/// Bytes read at once where little pieces are wanted that stand close together.
constexpr std::uint64_t window_bytes = std::uint64_t{64} << 10;

/// One dimension of a selection: `count` blocks, `stride` apart.
struct Dimension {
  std::uint64_t start, count, stride, block;
  std::uint64_t size() const { return count * block; }
  std::uint64_t at(std::uint64_t i) const { return start + i / block * stride + i % block; }
};

std::vector<Dimension> dimensions_of(const Extents& extents, const Hyperslab* part) {
  std::vector<Dimension> dimensions;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    Dimension d{0, 1, 1, extents[i]};
    if (part != nullptr)
      d = {part->start[i], part->count[i], part->stride.empty() ? 1 : part->stride[i],
           part->block.empty() ? 1 : part->block[i]};
    if (d.count == 1 || d.stride == d.block) d = {d.start, 1, 1, d.size()};  // blocks that touch are one
    dimensions.push_back(d);
  }
  if (dimensions.empty()) dimensions.push_back({0, 1, 1, 1});  // a scalar
  return dimensions;
}

/// Calls `use(coordinates, length)` for every stretch of the selection along its last dimension.
template <class Use>
void for_stretches(const std::vector<Dimension>& dimensions, const Use& use) {
  const std::size_t last = dimensions.size() - 1;
  for (const Dimension& d : dimensions) {
    if (d.size() == 0) return;
  }
  Extents turn(last, 0), at(dimensions.size());
  for (;;) {
    for (std::size_t i = 0; i < last; ++i) at[i] = dimensions[i].at(turn[i]);
    const Dimension& inner = dimensions[last];
    for (std::uint64_t b = 0; b < inner.count; ++b) {
      at[last] = inner.start + b * inner.stride;
      use(at, inner.block);
    }
    std::size_t d = last;
    while (d > 0 && ++turn[d - 1] == dimensions[d - 1].size()) turn[--d] = 0;
    if (d == 0) return;
  }
}

/// Elements that lie in one piece of the file. What is wanted is collected into stretches as long as
/// possible; short ones are taken out of a window on the file.
class PieceReader {
 public:
  PieceReader(const Source& source, std::uint64_t begin, std::uint64_t end, std::span<std::uint8_t> out)
      : source_(source), begin_(begin), end_(end), out_(out) {}

  void add(std::uint64_t at, std::uint64_t size) {
    if (at == next_ + pending_) {
      pending_ += size;
      return;
    }
    flush();
    next_ = at;
    pending_ = size;
  }

  void flush() {
    const auto to = out_.first(pending_);
    out_ = out_.subspan(pending_);
    if (pending_ >= window_bytes) {
      source_.read(begin_ + next_, to);
    } else if (pending_ > 0) {
      if (next_ < window_at_ || next_ + pending_ > window_at_ + window_.size()) {
        window_at_ = next_;
        window_.resize(std::min(window_bytes, end_ - (begin_ + next_)));
        source_.read(begin_ + window_at_, window_);
      }
      std::memcpy(to.data(), window_.data() + (next_ - window_at_), pending_);
    }
    pending_ = 0;
  }

 private:
  const Source& source_;
  std::uint64_t begin_, end_;
  std::span<std::uint8_t> out_;
  std::uint64_t next_ = 0, pending_ = 0;
  Bytes window_;
  std::uint64_t window_at_ = 0;
};

/// Calls `use(element, length)` for every stretch, with its first element in the dataset.
template <class Use>
void for_elements(const Extents& extents, const std::vector<Dimension>& dimensions, const Use& use) {
  for_stretches(dimensions, [&](const Extents& at, std::uint64_t length) {
    std::uint64_t index = 0;
    for (std::size_t i = 0; i < extents.size(); ++i) index = index * extents[i] + at[i];
    use(index, length);
  });
}

void read_piece(const Walk& walk, const StoredDataset& dataset, const std::vector<Dimension>& dimensions,
                std::span<std::uint8_t> out) {
  const std::uint64_t element = dataset.type.size, begin = dataset.layout.address;
  const std::uint64_t end = begin + *elements_of(dataset.extents) * element;
  PieceReader reader(walk.source(), begin, end, out);
  for_elements(dataset.extents, dimensions, [&](std::uint64_t index, std::uint64_t length) {
    reader.add(index * element, length * element);
  });
  reader.flush();
}

void copy_compact(const StoredDataset& dataset, const std::vector<Dimension>& dimensions,
                  std::span<std::uint8_t> out) {
  const std::uint64_t element = dataset.type.size;
  for_elements(dataset.extents, dimensions, [&](std::uint64_t index, std::uint64_t length) {
    std::memcpy(out.data(), dataset.layout.compact.data() + index * element, length * element);
    out = out.subspan(length * element);
  });
}

void read_chunked(const Walk& walk, const StoredDataset& dataset, const std::vector<Dimension>& dimensions,
                  std::span<std::uint8_t> out, ChunkCache& cache) {
  const StoredLayout& layout = dataset.layout;
  const std::uint64_t element = dataset.type.size;
  const std::size_t last = layout.chunk.size() - 1;
  std::uint64_t known = ~std::uint64_t{0};  // the chunk that `bytes` are of
  View bytes;
  for_stretches(dimensions, [&](Extents at, std::uint64_t length) {
    while (length > 0) {
      std::uint64_t index = 0, inside = 0;
      for (std::size_t i = 0; i <= last; ++i) {
        index = index * layout.grid[i] + at[i] / layout.chunk[i];
        inside = inside * layout.chunk[i] + at[i] % layout.chunk[i];
      }
      if (index != known) bytes = cache.chunk(walk, layout, dataset.type.size, index);
      known = index;
      const std::uint64_t count = std::min(length, layout.chunk[last] - at[last] % layout.chunk[last]);
      std::memcpy(out.data(), bytes.data() + inside * element, count * element);
      out = out.subspan(count * element);
      at[last] += count;
      length -= count;
    }
  });
}

}  // namespace

View ChunkCache::chunk(const Walk& walk, const StoredLayout& layout, std::uint32_t element_bytes,
                       std::uint64_t index) {
  if (const auto known = places_.find(index); known != places_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    return entries_.front().bytes;
  }
  const std::uint64_t entry_bytes = layout.chunk_bytes + 128;  // with what keeps it
  while (!entries_.empty() && (entries_.size() + 1) * entry_bytes > cache_bytes) {
    places_.erase(entries_.back().index);
    entries_.pop_back();
  }
  entries_.push_front({index, unpack(walk, layout, element_bytes, layout.chunks[index])});
  places_[index] = entries_.begin();
  return entries_.front().bytes;
}

void read_elements(const Walk& walk, const StoredDataset& dataset, const Hyperslab* part,
                   std::span<std::uint8_t> out, ChunkCache& cache) {
  if (out.empty()) return;
  const std::vector<Dimension> dimensions = dimensions_of(dataset.extents, part);
  const std::span<std::uint8_t> all = out;
  switch (dataset.layout.kind) {
    case StoredLayout::Kind::compact:
      copy_compact(dataset, dimensions, out);
      break;
    case StoredLayout::Kind::contiguous:
      read_piece(walk, dataset, dimensions, out);
      break;
    case StoredLayout::Kind::chunked:
      read_chunked(walk, dataset, dimensions, out, cache);
      break;
  }
  if (dataset.type.big_endian) {
    for (std::size_t at = 0; at < all.size(); at += dataset.type.size)
      std::reverse(all.begin() + static_cast<std::ptrdiff_t>(at),
                   all.begin() + static_cast<std::ptrdiff_t>(at + dataset.type.size));
  }
}

}  // namespace annulus::io::hdf5
