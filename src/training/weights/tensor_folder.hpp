#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "training/io/safetensors/safetensors.hpp"

namespace annulus::weights {

/// The tensors of a folder: those of model.safetensors, or of the files that model.safetensors.index.json
/// lists. Several threads may read at once.
class TensorFolder {
 public:
  /// Opens all files and reads their headers. Throws Error, one line, when there are none, when a file is
  /// refused (io::SafetensorsFile), when the index leads out of the folder or does not say what the files
  /// say, and when two files hold a tensor of one name.
  explicit TensorFolder(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<io::SafetensorsFile>& files() const { return files_; }

  /// A tensor with the file that holds it.
  struct Location {
    const io::SafetensorsFile* file = nullptr;
    const io::SafetensorsTensor* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };
  /// Where the tensor of that name lies; empty where there is none.
  Location find(std::string_view name) const;

  /// All tensors, sorted by name.
  std::vector<Location> all() const;

 private:
  std::filesystem::path folder_;
  std::vector<io::SafetensorsFile> files_;
};

}  // namespace annulus::weights
