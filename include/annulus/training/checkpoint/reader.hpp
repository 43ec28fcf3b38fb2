#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <annulus/training/checkpoint/manifest.hpp>
#include <annulus/training/checkpoint/state.hpp>

namespace annulus::checkpoint {

/// A checkpoint opened for reading. Several threads may read at once.
class Checkpoint {
 public:
  /// How much is looked at when it is opened.
  enum class Check : std::uint8_t {
    whole,    ///< that all parts are there and have their sizes
    manifest  ///< the manifest alone
  };

  /// Throws Error naming file and remedy when it is damaged, foreign or of another version.
  explicit Checkpoint(std::filesystem::path path, Check check = Check::whole);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& path() const;
  const Manifest& manifest() const;
  const Progress& progress() const { return manifest().progress; }
  /// "annulus 0.2.0 0123456789ab": the program that wrote it.
  const std::string& creator() const { return manifest().creator; }
  /// Of each buffer, f32. In the order in which the model has them.
  const std::vector<Tensor>& tensors() const { return manifest().tensors; }
  /// Of all files, without the manifest.
  std::uint64_t bytes() const;

  /// Throws Error naming the tensor unless the checkpoint has just these, in any order.
  void require_tensors(std::span<const Tensor> tensors) const;

  /// Calls use(at, values) with elements [first, first + count) of a tensor in one buffer, piece by piece and
  /// in order; `at` counts from 0 to count. Reads nothing but the blocks that they lie in, and hands no
  /// element out before its block has been compared with its checksum. Throws Error naming file and tensor
  /// when they differ, when there is no such tensor and when the part is missing or not what the manifest
  /// says.
  using Use = std::function<void(std::int64_t at, std::span<const float> values)>;
  void read(Buffer buffer, const std::string& tensor, std::int64_t first, std::int64_t count,
            const Use& use) const;

  /// Reads everything and compares it with its checksums: throws Error at the first damage. `seen` gets the
  /// bytes read so far.
  void verify(const std::function<void(std::uint64_t)>& seen = {}) const;

 private:
  class Folder;
  std::unique_ptr<Folder> folder_;
};

}  // namespace annulus::checkpoint
