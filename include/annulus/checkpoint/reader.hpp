#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <annulus/checkpoint/state.hpp>

namespace annulus::checkpoint {

struct Manifest;

/// A checkpoint opened for reading: a folder, or a file of versions 1 and 2. Several threads may read at
/// once.
class Checkpoint {
 public:
  /// How much is looked at when it is opened.
  enum class Check : std::uint8_t {
    whole,    ///< a folder: that all parts are there and have their sizes; a file: the checksum of all bytes
    manifest  ///< a folder: the manifest alone; a file: nothing, where another rank has made sure
  };

  /// Throws Error naming file and remedy when it is damaged, foreign or of another version.
  explicit Checkpoint(std::filesystem::path path, Check check = Check::whole);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& path() const;
  const Progress& progress() const;
  /// "annulus 0.2.0 0123456789ab": the program that wrote it.
  const std::string& creator() const;
  /// Of each buffer, f32. In the order in which the model has them; of a file in that of their names.
  const std::vector<Tensor>& tensors() const;
  /// Of a folder; null for a file.
  const Manifest* manifest() const;
  /// Of all files, without the manifest.
  std::uint64_t bytes() const;

  /// Throws Error naming the tensor unless the checkpoint has just these, in any order.
  void require_tensors(std::span<const Tensor> tensors) const;

  /// Calls use(at, values) with elements [first, first + count) of a tensor in one buffer, piece by piece and
  /// in order; `at` counts from 0 to count. Reads nothing but the blocks that they lie in (a file: rows), and
  /// hands no element out before its block has been compared with its checksum (a file: those of whole
  /// tensors are, at the end). Throws Error naming file and tensor when they differ, when there is no such
  /// tensor and when the part is missing or not what the manifest says.
  using Use = std::function<void(std::int64_t at, std::span<const float> values)>;
  void read(Buffer buffer, const std::string& tensor, std::int64_t first, std::int64_t count,
            const Use& use) const;

  /// Reads everything and compares it with its checksums: throws Error at the first damage. `seen` gets the
  /// bytes read so far.
  void verify(const std::function<void(std::uint64_t)>& seen = {}) const;

 private:
  class Source;
  class Folder;
  class File;
  std::unique_ptr<Source> source_;
};

}  // namespace annulus::checkpoint
