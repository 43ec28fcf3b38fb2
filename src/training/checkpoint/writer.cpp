#include "training/checkpoint/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "base/parallel_tasks.hpp"
#include "training/io/atomic.hpp"
#include "training/io/crc32.hpp"
#include "training/io/safetensors/writer.hpp"

namespace annulus::checkpoint {

namespace fs = std::filesystem;

namespace {

/// A piece, and where its elements lie in the flat buffers.
struct PlacedPiece {
  TensorPiece piece;
  std::int64_t offset = 0;
};

/// The slices, cut where tensors end.
std::vector<PlacedPiece> cut(std::span<const Slice> slices, std::span<const StoredTensor> tensors) {
  std::vector<PlacedPiece> pieces;
  std::size_t tensor = 0;
  std::int64_t begin = 0;  // of the tensor, in the model
  for (const Slice& slice : slices) {
    for (std::int64_t at = slice.begin; at < slice.end;) {
      while (tensor < tensors.size() && begin + tensors[tensor].elements() <= at)
        begin += tensors[tensor++].elements();
      require(tensor < tensors.size() && at >= begin,
              "checkpoint: the slice [{}, {}) is out of order or ends behind the model", slice.begin,
              slice.end);
      const std::int64_t end = std::min(slice.end, begin + tensors[tensor].elements());
      pieces.push_back({{.tensor = tensor, .first = at - begin, .count = end - at, .checksums = {}},
                        slice.offset + at - slice.begin});
      at = end;
    }
  }
  return pieces;
}

/// Elements that one checksum of a piece is of.
struct ChecksumBlock {
  std::size_t piece = 0;
  std::int64_t number = 0;  // in the piece
  std::int64_t count = 0;   // elements
};

/// The blocks of all pieces, in order. Makes room for their checksums.
std::vector<ChecksumBlock> blocks_of(std::span<PlacedPiece> pieces, std::int64_t block) {
  std::vector<ChecksumBlock> blocks;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    TensorPiece& piece = pieces[p].piece;
    const std::int64_t count = ceil_divide(piece.count, block);
    for (auto& checksums : piece.checksums) checksums.resize(static_cast<std::size_t>(count));
    for (std::int64_t number = 0; number < count; ++number)
      blocks.push_back({p, number, std::min(block, piece.count - number * block)});
  }
  return blocks;
}

/// Says how far all blocks are written, whatever the order in which threads finish them.
class WrittenInOrder {
 public:
  WrittenInOrder(std::size_t blocks, const std::function<void(std::int64_t)>& passed)
      : ends_(blocks, unwritten), passed_(passed) {}

  /// `end`: the offset behind the block.
  void written(std::size_t block, std::int64_t end) {
    const std::lock_guard lock(mutex_);
    ends_[block] = end;
    for (; done_ < ends_.size() && ends_[done_] != unwritten; ++done_)
      if (passed_) passed_(ends_[done_]);
  }

 private:
  static constexpr std::int64_t unwritten = -1;

  std::mutex mutex_;
  std::vector<std::int64_t> ends_;
  const std::function<void(std::int64_t)>& passed_;
  std::size_t done_ = 0;
};

std::string tensor_name(Buffer buffer, const StoredTensor& tensor) {
  return fmt::format("{}/{}", name_of(buffer), tensor.name);
}

fs::path entry_of(const fs::path& folder, int part, int parts) {
  return folder / (part_file(part, parts) + ".json");
}

}  // namespace

void write_part(const PartToWrite& part, std::span<const StoredTensor> tensors, const Elements& elements,
                const std::function<void(std::int64_t)>& passed, std::int64_t block) {
  std::vector<PlacedPiece> pieces = cut(part.slices, tensors);
  std::vector<io::SafetensorsSpec> specs;
  for (const Buffer buffer : buffers)
    for (const PlacedPiece& placed : pieces) {
      const StoredTensor& tensor = tensors[placed.piece.tensor];
      const bool whole = placed.piece.count == tensor.elements();
      specs.push_back({tensor_name(buffer, tensor), DType::f32,
                       whole ? tensor.extents : io::Extents{static_cast<std::uint64_t>(placed.piece.count)}});
    }
  PartFile written{.file = part_file(part.part, part.parts), .bytes = 0, .pieces = {}};
  // Without metadata, whose damage nobody would notice.
  io::SafetensorsWriter file(part.folder / written.file, std::move(specs));
  written.bytes = file.size();
  const std::vector<ChecksumBlock> blocks = blocks_of(pieces, block);
  WrittenInOrder order(blocks.size(), passed);
  parallel_tasks(blocks.size(), part.threads, [&](int, std::size_t task) {
    const ChecksumBlock& next = blocks[task];
    PlacedPiece& placed = pieces[next.piece];
    const std::int64_t at = next.number * block;
    for (const Buffer buffer : buffers) {
      const std::span<const float> values = elements(buffer, placed.offset + at, next.count);
      file.write(tensor_name(buffer, tensors[placed.piece.tensor]), static_cast<std::uint64_t>(at), values);
      placed.piece.checksums[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(next.number)] =
          io::crc32_of(values);
    }
    order.written(task, placed.offset + at + next.count);
  });
  for (PlacedPiece& placed : pieces) written.pieces.push_back(std::move(placed.piece));
  file.finish();
  io::write_text_atomically(entry_of(part.folder, part.part, part.parts), to_text(written), Links::refuse);
}

bool all_parts_written(const fs::path& folder, int parts) {
  std::error_code error;
  for (int part = 0; part < parts; ++part)
    if (!fs::exists(entry_of(folder, part, parts), error)) return false;
  return true;
}

void write_manifest(const fs::path& folder, const Progress& progress, std::vector<StoredTensor> tensors,
                    int parts, std::int64_t block) {
  Manifest manifest{.creator = fmt::format("annulus {} {}", version(), git_hash()),
                    .progress = progress,
                    .block = block,
                    .tensors = std::move(tensors),
                    .parts = {}};
  for (int part = 0; part < parts; ++part) {
    const fs::path entry = entry_of(folder, part, parts);
    manifest.parts.push_back(parse_part(read_text(entry, kinds::manifest, Links::refuse), entry.string()));
    std::error_code error;
    fs::remove(entry, error);
    require(!error, "{} cannot be removed ({}): check the permissions of the folder", entry.string(),
            error.message());
  }
  // A rank that holds nothing of the model has written a file all the same.
  const std::string text = manifest.to_text();
  Manifest::parse(text, (folder / manifest_file).string());
  io::write_text_atomically(folder / manifest_file, text, Links::refuse);
}

}  // namespace annulus::checkpoint
