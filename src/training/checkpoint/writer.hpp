#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "training/checkpoint/manifest.hpp"

namespace annulus::checkpoint {

/// What one rank writes.
struct PartToWrite {
  std::filesystem::path folder;
  int part = 0, parts = 1;
  /// Slices in the order of both their elements and their offsets, without overlap; no two have elements of
  /// one tensor.
  std::vector<Slice> slices;
  /// Threads that read, checksum and write blocks at the same time.
  int threads = 1;
};

/// Elements [offset, offset + count) of a rank's flat buffer, in memory of the host: they stay until the same
/// thread calls again. All threads of a PartToWrite call at once.
using Elements =
    std::function<std::span<const float>(Buffer buffer, std::int64_t offset, std::int64_t count)>;

/// Elements that a checksum is of, and that Elements is asked for at most.
inline constexpr std::int64_t default_block = std::int64_t{1} << 20;

/// Writes the file of a part and brings it to the disk, then beside it, as FILE.json, what the manifest needs
/// to know of it. `tensors`: all of the model, which lie one behind the other. `passed(offset)`: nothing
/// before this offset will be asked for again; the offsets ascend, and one thread calls at a time. The number
/// of threads changes no byte. Throws Error naming the file.
void write_part(const PartToWrite& part, std::span<const StoredTensor> tensors, const Elements& elements,
                const std::function<void(std::int64_t offset)>& passed = {},
                std::int64_t block = default_block);

/// Whether all parts are written, by what lies in the folder.
bool all_parts_written(const std::filesystem::path& folder, int parts);

/// Puts the manifest together from what write_part left, which goes, and brings it and the folder to the
/// disk. Throws Error naming the file, also when the parts do not have every element once.
void write_manifest(const std::filesystem::path& folder, const Progress& progress,
                    std::vector<StoredTensor> tensors, int parts, std::int64_t block = default_block);

}  // namespace annulus::checkpoint
