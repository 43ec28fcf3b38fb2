#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/checkpoint/manifest.hpp>
#include <annulus/checkpoint/reader.hpp>

namespace annulus::checkpoint {

/// What a Checkpoint reads from.
class Checkpoint::Source {
 public:
  explicit Source(std::filesystem::path path) : path(std::move(path)) {}
  virtual ~Source() = default;

  virtual const Manifest* manifest() const { return nullptr; }
  virtual std::uint64_t bytes() const = 0;
  /// Of a tensor that is there, elements that are there.
  virtual void read(Buffer buffer, std::size_t tensor, std::int64_t first, std::int64_t count,
                    const Use& use) const = 0;

  std::filesystem::path path;
  Progress progress;
  std::string creator;
  std::vector<Tensor> tensors;
  std::map<std::string_view, std::size_t> by_name;  // indices of tensors
};

/// Versions 1 and 2: an HDF5 file with a last line.
class Checkpoint::File final : public Source {
 public:
  File(std::filesystem::path path, Check check);

  std::uint64_t bytes() const override;
  void read(Buffer buffer, std::size_t tensor, std::int64_t first, std::int64_t count,
            const Use& use) const override;
};

}  // namespace annulus::checkpoint
