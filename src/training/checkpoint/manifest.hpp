#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/training/checkpoint/reader.hpp>

namespace annulus::checkpoint {

/// Elements [begin, end) of a model, whose tensors lie one behind the other, and where they lie in the flat
/// buffers of a rank.
struct Slice {
  std::int64_t begin = 0, end = 0;
  std::int64_t offset = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

/// The end of every message about a checkpoint that is damaged.
inline constexpr const char* bad_checkpoint_advice =
    "remove it, or resume from another one with --resume PATH";

inline constexpr const char* manifest_format = "annulus-checkpoint";
inline constexpr std::int64_t manifest_version = 3;
inline constexpr const char* manifest_file = "manifest.json";

/// Elements [first, first + count) of a tensor, in row-major order: what a part holds of it, in each buffer
/// as a tensor of its file that is named "buffer/tensor". Its shape is the tensor's where it is all of it,
/// else (count).
struct TensorPiece {
  std::size_t tensor = 0;  ///< index into Manifest::tensors
  std::int64_t first = 0, count = 0;
  /// CRC-32 of every Manifest::block elements (the last ones may be fewer), for each of `buffers`.
  std::array<std::vector<std::uint32_t>, buffer_count> checksums;

  std::int64_t end() const { return first + count; }
};

/// A file in safetensors layout, which one rank has written.
struct PartFile {
  std::string file;  ///< its name in the folder
  std::uint64_t bytes = 0;
  std::vector<TensorPiece> pieces;
};

/// What a checkpoint is and what lies where.
struct Manifest {
  std::string creator;  ///< the program that wrote it
  Progress progress;
  std::int64_t block = 0;  ///< elements that a checksum is of
  std::vector<StoredTensor> tensors;
  std::vector<PartFile> parts;

  /// Throws Error, naming `origin`, unless the text is whole (its first line is the CRC-32 of the rest) and
  /// says of every element exactly once where it lies, in files of the folder itself.
  static Manifest parse(std::string_view text, const std::string& origin);
  std::string to_text() const;
};

/// A part as JSON, for whoever puts the manifest together.
std::string to_text(const PartFile& part);
PartFile parse_part(std::string_view text, const std::string& origin);

/// "part-00003-of-00008.safetensors".
std::string part_file(int part, int parts);

}  // namespace annulus::checkpoint
